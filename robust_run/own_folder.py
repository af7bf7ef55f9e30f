"""Whether a folder is a safe place for a run, or a cache: asked before anything is written into it.

A run directory holds the job's token, its socket, its journal and the code that workers run, so who owns it, or may write into
it, owns the job. In a folder that many users share (`/tmp`), somebody may have made it beforehand, or put a link in its place:
the kernel follows that where `fs.protected_symlinks` is off, and whoever made it can lead it elsewhere at any time.

How it is known: by owner and mode, of the folder itself and not of what a link names. What looks the same and is healthy:

- a folder of this user's own, made by another node of the job or by hand;
- a project's folder, of another member of the team and writable for the group, as the *parent* of run directories. Who may
  write there may rename ours, which no check can prevent; that team is trusted as it is with the code that lies there;
- the same in a scratch that is open to all: whoever works below it runs the code that lies there, and trusts its owner as it is;
- storage that keeps no owners or modes (FUSE, SMB, NFS with squashed ids, user namespaces): there, what this process makes at
  this moment has the same owner and mode, and that is looked at before a folder is called foreign.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from robust_run.errors import UserError

ROOT = 0


class FolderFacts(NamedTuple):
    """What the kernel says of a path, links not followed."""

    uid: int
    mode: int
    """With the kind of file, as `os.lstat` has it."""

    @property
    def is_shared(self) -> bool:
        """Whether it is a folder where anybody may make things, and each owns what is his (`/tmp`)."""
        return stat.S_ISDIR(self.mode) and bool(self.mode & stat.S_ISVTX) and bool(self.mode & stat.S_IWOTH)


class Stranger(NamedTuple):
    """What is not ours on the way to a folder."""

    path: str
    why: str
    """As a clause."""


def why_not_on_the_way(folder: FolderFacts, entry: FolderFacts, trusted: frozenset[int]) -> str:
    """Return why an entry of a folder on the way to a folder of ours cannot be passed; empty where it can.

    Only in folders that anybody may write to (with the sticky bit: those whose users do not trust each other) does it matter
    who put a folder or a link there.
    """
    if not folder.is_shared or entry.uid in trusted or entry.is_shared:
        return ""
    what = "a link" if stat.S_ISLNK(entry.mode) else "a folder"
    return f"it is {what} of user {entry.uid} in a folder that anybody can write to"


def stranger_on_the_way(path: str, works_in: Callable[[], str] = os.getcwd) -> Stranger | None:
    """Return the first thing on the way to a path, itself included, that cannot be passed; links are looked at, too.

    `works_in`: tells the folder that this process was started in. Folders above that one can be passed.
    """
    here = _above(works_in)
    trusted = frozenset({os.geteuid(), ROOT, _owner_of_root()})
    for way in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        folder = facts_of("/")
        at = "/"
        for name in way.split("/"):
            at = os.path.join(at, name)
            entry = facts_of(at)
            if folder is None or entry is None:
                break
            is_above_us = stat.S_ISDIR(entry.mode) and os.path.realpath(at) in here
            if not is_above_us and (why := why_not_on_the_way(folder, entry, trusted)):
                return Stranger(at, why)
            folder = facts_of(os.path.realpath(at)) if stat.S_ISLNK(entry.mode) else entry
    return None


def _above(works_in: Callable[[], str]) -> frozenset[str]:
    """Return a folder and all above it, links followed; nothing where it has been removed."""
    try:
        at = os.path.realpath(works_in())
    except OSError:
        return frozenset()
    found = {at}
    while at != os.path.dirname(at):
        at = os.path.dirname(at)
        found.add(at)
    return frozenset(found)


def facts_of(path: str) -> FolderFacts | None:
    """Return what is at a path; None where nothing is, or this user may not look."""
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return FolderFacts(status.st_uid, status.st_mode)


def _owner_of_root() -> int:
    """Return who owns `/`: where root is not mapped (a user namespace), what is root's looks like this."""
    root = facts_of("/")
    return root.uid if root is not None else ROOT


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
        next_step = "start in it if you trust its owner, or choose another --log-dir"
        raise UserError(f"run directories cannot be kept below {found.path!r}: {found.why}; {next_step}")


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
