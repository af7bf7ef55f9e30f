"""Whether a folder is a safe place for a run: asked before anything is written into it.

A run directory holds the job's token, its socket, its journal and the code that workers run, so who owns it, or may write into
it, owns the job. In a folder that many users share (`/tmp`), somebody may have made it beforehand, or put a link in its place.

How it is known: by owner and mode, of the folder itself and not of what a link names. What looks the same and is healthy:

- a folder of this user's own, made by another node of the job or by hand;
- a project's folder, of another member of the team and writable for the group, as the *parent* of run directories. Who may
  write there may rename ours, which no check can prevent; that team is trusted as it is with the code that lies there;
- storage that keeps no owners or modes (FUSE, SMB, NFS with squashed ids, user namespaces): there, what this process makes at
  this moment has the same owner and mode, and that is looked at before a folder is called foreign.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from robust_run.errors import UserError
from robust_run.strangers import FolderFacts, facts_of, stranger_on_the_way


def why_not_for_run(found: FolderFacts, us: int, made: FolderFacts | None) -> str:
    """Return why a run directory that exists cannot be used, as a clause; empty where it can.

    `made`: a folder that this process has made beside it a moment ago; None: not tried.
    """
    if stat.S_ISLNK(found.mode):
        return "" if found.uid == us else f"it is a link that user {found.uid} has put there"
    if not stat.S_ISDIR(found.mode):
        return "it is not a folder"
    if found.uid != us and (made is None or found.uid != made.uid):
        return f"it belongs to user {found.uid}, and this is user {us}"
    others = found.mode & (stat.S_IWGRP | stat.S_IWOTH)
    if made is not None and stat.S_IMODE(found.mode) | stat.S_IMODE(made.mode) == stat.S_IMODE(made.mode):
        others = 0  # as open as all folders are there
    return (
        f"others can write to it (mode {stat.S_IMODE(found.mode):04o}): chmod 700 makes it yours alone"
        if others
        else ""
    )


def check_way(path: str) -> None:
    """Check what exists on the way to the parent of run directories, links included. Raises UserError."""
    if found := stranger_on_the_way(path):
        raise UserError(f"run directories cannot be kept below {found.path!r}: {found.why}; choose another --log-dir")


def check_run(path: str, next_step: str) -> None:
    """Check a run directory that exists. Raises UserError."""
    us = os.geteuid()
    for each in dict.fromkeys((path, os.path.realpath(path))):
        found = facts_of(each)
        if found is None or not why_not_for_run(found, us, None):
            continue
        if why := why_not_for_run(found, us, _made_beside(each)):
            raise UserError(f"the run directory {each!r} cannot be used: {why}; {next_step}")


def _made_beside(path: str) -> FolderFacts | None:
    """Return what a folder looks like that this process makes there; None where it cannot make one."""
    probe = os.path.join(os.path.dirname(path), f".robust-run-{os.urandom(8).hex()}")
    try:
        os.mkdir(probe, 0o700)
    except OSError:
        return None
    try:
        return facts_of(probe)
    finally:
        with suppress(OSError):
            os.rmdir(probe)
