"""Everything below a folder of this machine's. Symbolic links are told, and not followed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from robust_run.store.types import Kind, Walked


def walk(folder: str) -> Iterator[Walked]:
    """Yield what lies below a folder, each folder before what it holds. Raises OSError."""
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            opened = os.scandir(os.path.join(folder, prefix))
        except FileNotFoundError:
            if prefix:  # removed since
                continue
            raise
        with opened as entries:
            for entry in entries:
                path = os.path.join(prefix, entry.name)
                try:
                    status = entry.stat(follow_symlinks=False)
                    target = os.readlink(entry.path) if stat.S_ISLNK(status.st_mode) else ""
                except FileNotFoundError:  # removed since
                    continue
                kind = kind_of(status.st_mode)
                size_bytes = status.st_size if kind == "file" else 0
                yield Walked(
                    path=path, kind=kind, size_bytes=size_bytes, modified_s=status.st_mtime_ns / 1e9, target=target
                )
                if kind == "folder":
                    waiting.append(path)


def kind_of(mode: int) -> Kind:
    """Return what a mode says."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"
