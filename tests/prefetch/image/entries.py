"""All entries of a tree as they lie on a disk, for comparing two trees: whoever made them, and knowing nothing of who did."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple


class TreeEntry(NamedTuple):
    """One entry of a tree."""

    kind: int
    """`stat.S_IFMT` of its mode."""
    mode: int
    """Permissions, with setuid, setgid and sticky bits."""
    owner: tuple[int, int]
    time_s: int
    """Of its last modification, in whole seconds."""
    content: str
    """Size and digest of a file, the target of a link, the numbers of a device."""
    same: tuple[str, ...]
    """All names of it, where it has several."""
    attributes: tuple[str, ...]
    """Names of its extended attributes, without those that a machine gives to every file."""

    @property
    def is_device(self) -> bool:
        """Whether it is a device node."""
        return self.kind in (stat.S_IFBLK, stat.S_IFCHR)


def entries_of(tree: Path) -> dict[str, TreeEntry]:
    """Return all entries of a tree by their path in it, the root as "." first."""
    found: dict[str, os.stat_result] = {".": os.lstat(tree)}
    for folder, folders, files in os.walk(tree):
        for name in folders + files:
            whole = os.path.join(folder, name)
            found[os.path.relpath(whole, tree)] = os.lstat(whole)
    names: dict[int, list[str]] = defaultdict(list)
    for path, status in sorted(found.items()):
        if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
            names[status.st_ino].append(path)
    return {path: _entry(str(tree / path), status, tuple(names[status.st_ino])) for path, status in found.items()}


def _entry(whole: str, status: os.stat_result, same: tuple[str, ...]) -> TreeEntry:
    kind = stat.S_IFMT(status.st_mode)
    content = ""
    if kind == stat.S_IFREG:
        with open(whole, "rb") as file:
            content = f"{status.st_size} {hashlib.sha256(file.read()).hexdigest()}" if status.st_size else "0"
    elif kind == stat.S_IFLNK:
        content = os.readlink(whole)
    elif kind in (stat.S_IFBLK, stat.S_IFCHR):
        content = f"{os.major(status.st_rdev)} {os.minor(status.st_rdev)}"
    attributes: list[str] = []
    with contextlib.suppress(OSError):  # this file system has none
        attributes = os.listxattr(whole, follow_symlinks=False)
    return TreeEntry(
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        owner=(status.st_uid, status.st_gid),
        time_s=int(status.st_mtime_ns // 1_000_000_000),
        content=content,
        same=same,
        attributes=tuple(sorted(name for name in attributes if name != "security.selinux")),
    )
