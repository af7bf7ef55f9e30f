"""Removing what was unpacked of an image: it may have folders that even their owner may not write."""

from __future__ import annotations

import os
import shutil
import stat


def remove_tree(path: str) -> None:
    """Remove a folder of ours with all that is in it, as far as that is possible; links in it are not followed. Never raises."""
    if os.geteuid() != 0:
        _open_up(path)
    shutil.rmtree(path, ignore_errors=True)


def _open_up(path: str) -> None:
    waiting = [path]
    while waiting:
        folder = waiting.pop()
        try:
            mode = os.lstat(folder).st_mode
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(folder, stat.S_IMODE(mode) | stat.S_IRWXU)
            with os.scandir(folder) as inside:
                waiting += [entry.path for entry in inside if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
