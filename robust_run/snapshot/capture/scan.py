"""Capture without overlays: what the roots held before is compared with what they hold after, and what differs is copied.

The commands run on the real folders then. A change that leaves size, inode and both times as they were is not seen; no program
can do that without setting the clock.
"""

from __future__ import annotations

import os
import shutil
import stat

Marks = dict[str, tuple[int, ...]]


def marks(top: str) -> Marks:
    """Return what tells whether something below a folder changed, by relative path. Folders only by their mode."""
    found: Marks = {}
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(os.path.join(top, folder)))
        except OSError:
            continue
        for item in entries:
            path = os.path.join(folder, item.name)
            status = item.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
                found[path] = (status.st_mode,)
            else:
                found[path] = (
                    status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
                )  # fmt: skip
    return found


def compared(before: Marks, after: Marks) -> tuple[list[str], list[str]]:
    """Return the paths that are new or changed, and those removed (only the uppermost of a removed folder). Pure."""
    changed = sorted(path for path, mark in after.items() if before.get(path) != mark)
    gone = {path for path in before if path not in after}
    removed = []
    for path in sorted(gone):
        parent = os.path.dirname(path)
        if parent in gone or (parent and not stat.S_ISDIR(after[parent][0])):
            continue  # it went with its folder, or a file took that one's place
        removed.append(path)
    return changed, removed


def copy(top: str, paths: list[str], into: str) -> list[str]:
    """Copy what changed, with the folders above it. Returns what was left out: sockets, devices, pipes."""
    dropped = []
    os.makedirs(into, exist_ok=True)
    for path in paths:
        source, target = os.path.join(top, path), os.path.join(into, path)
        status = os.lstat(source)
        _folders_above(top, path, into)
        if stat.S_ISDIR(status.st_mode):
            os.makedirs(target, exist_ok=True)
            os.chmod(target, stat.S_IMODE(status.st_mode) | 0o700)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISREG(status.st_mode):
            shutil.copyfile(source, target)
            os.chmod(target, stat.S_IMODE(status.st_mode) & 0o777)
        else:
            dropped.append(path)
    return dropped


def _folders_above(top: str, path: str, into: str) -> None:
    above = os.path.dirname(path)
    missing = []
    while above and not os.path.isdir(os.path.join(into, above)):
        missing.append(above)
        above = os.path.dirname(above)
    for folder in reversed(missing):
        os.mkdir(os.path.join(into, folder))
        os.chmod(os.path.join(into, folder), stat.S_IMODE(os.lstat(os.path.join(top, folder)).st_mode) | 0o700)
