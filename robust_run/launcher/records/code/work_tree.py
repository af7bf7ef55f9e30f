"""What git's own files say of a folder, without starting git: where its work tree begins, and at which commit it is."""

from __future__ import annotations

import os
import re

from robust_run.launcher.records.code.reading import read_file

IS_COMMIT = re.compile(r"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z").match
_SMALL_BYTES = 4 << 20


def work_tree_of(folder: str) -> str:
    """Return the top of the work tree that a folder is in; empty where it is in none."""
    here = os.path.abspath(folder)
    while True:
        if os.path.lexists(os.path.join(here, ".git")):
            return here
        parent = os.path.dirname(here)
        if parent == here:
            return ""
        here = parent


def head_commit(top: str) -> str:
    """Return the commit that a work tree is at, read from git's files; empty where they do not say. Never raises."""
    try:
        folder = os.path.join(top, ".git")
        if os.path.isfile(folder):  # a linked work tree, or a submodule
            said = _text(folder)
            folder = os.path.join(top, said.removeprefix("gitdir:").strip()) if said.startswith("gitdir:") else ""
        head = _text(os.path.join(folder, "HEAD"))
        if not head.startswith("ref:"):
            return head if IS_COMMIT(head) else ""
        name = head.removeprefix("ref:").strip()
        common = folder
        shared = os.path.join(folder, "commondir")
        if os.path.exists(shared):
            common = os.path.join(folder, _text(shared))
        for place in (folder, common):
            path = os.path.join(place, name)
            if ".." not in name and os.path.isfile(path):
                commit = _text(path)
                return commit if IS_COMMIT(commit) else ""
        for line in _text(os.path.join(common, "packed-refs")).splitlines():
            commit, _, named = line.partition(" ")
            if named == name and IS_COMMIT(commit):
                return commit
    except (OSError, ValueError):
        pass
    return ""


def _text(path: str) -> str:
    data = read_file(path, _SMALL_BYTES)
    return (data or b"").decode(errors="replace").strip()
