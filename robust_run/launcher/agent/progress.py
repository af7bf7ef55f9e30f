"""Progress of an attempt, seen from outside: optimizer steps of its ranks, and checkpoint files that grow."""

from __future__ import annotations

import os

#: More files than this under the progress paths are not looked at: a glob over a data set must not cost a restart seconds.
MAX_FILES = 10_000

Files = dict[str, tuple[int, int]]


def look_at(paths: tuple[str, ...], ours: str = "") -> Files:
    """Return (modification time in ns, size in bytes) of every file that the paths, folders and globs name.

    Files below `ours`, the folder of run directories, are the launcher's own doing and no progress.
    """
    found: Files = {}
    if not paths:
        return found
    import glob

    for pattern in paths:
        for path in glob.iglob(os.path.expanduser(pattern)) if glob.has_magic(pattern) else (pattern,):
            _add(path, found)
    own = os.path.join(os.path.abspath(ours), "") if ours else ""
    return {path: seen for path, seen in found.items() if not own or not os.path.abspath(path).startswith(own)}


def _add(path: str, found: Files) -> None:
    for folder, _, names in os.walk(path):
        for name in names:
            _stat(os.path.join(folder, name), found)
            if len(found) >= MAX_FILES:
                return
    if os.path.isfile(path):
        _stat(path, found)


def _stat(path: str, found: Files) -> None:
    try:
        status = os.stat(path)
    except OSError:
        return
    found[path] = (status.st_mtime_ns, status.st_size)
