"""What another user may have put on the way to a folder of ours: a link or a folder, where anybody may make things (`/tmp`).

The kernel follows such a link where `fs.protected_symlinks` is off, and whoever made it can lead it elsewhere at any time.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

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


def stranger_on_the_way(path: str) -> Stranger | None:
    """Return the first thing on the way to a path, itself included, that cannot be passed; links are looked at, too."""
    trusted = frozenset({os.geteuid(), ROOT, _owner_of_root()})
    for way in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        folder = facts_of("/")
        at = "/"
        for name in way.split("/"):
            at = os.path.join(at, name)
            entry = facts_of(at)
            if folder is None or entry is None:
                break
            if why := why_not_on_the_way(folder, entry, trusted):
                return Stranger(at, why)
            folder = facts_of(os.path.realpath(at)) if stat.S_ISLNK(entry.mode) else entry
    return None


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
