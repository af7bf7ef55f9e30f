"""What set-up commands changed outside the captured folders: another node would not have it, so it is named.

Best by overlays over the folders that installers write to: then it is known exactly and this machine stays as it was. Where that
is not possible, by time stamps: a file whose change time is not before the start. In the user's home that proves little, as other
programs of the user write there, too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from robust_run.mounts.overlay import is_whiteout
from robust_run.snapshot.roots import is_within
from robust_run.snapshot.rules.types import Root

#: Where system-wide installers write.
SYSTEM_FOLDERS = ("/usr", "/etc", "/opt", "/srv", "/var/lib", "/lib", "/lib64", "/bin", "/sbin")
MOST_NAMED = 100
MOST_LOOKED_AT = 400_000
_HARMLESS_PARTS = frozenset(("__pycache__", ".cache", ".git"))
_HARMLESS_PATHS = frozenset(("/etc/mtab", "/etc/resolv.conf"))


def watchable(roots: Sequence[Root], folders: Iterable[str] = SYSTEM_FOLDERS) -> list[str]:
    """Return the folders over which an overlay can watch: real ones that we could write to, and that are in no root."""
    found = []
    for folder in folders:
        if os.path.islink(folder) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
            continue
        if not any(is_within(folder, root.path) for root in roots):
            found.append(folder)
    return found


def in_watch(upper: str, target: str) -> list[str]:
    """Return what was written to a watched folder: files, links and removed names, by path."""
    found = []
    for folder, folders, names in os.walk(upper):
        relative = os.path.relpath(folder, upper)
        for name in [*names, *(name for name in folders if os.path.islink(os.path.join(folder, name)))]:
            path = os.path.normpath(os.path.join(target, relative, name))
            gone = is_whiteout(os.lstat(os.path.join(folder, name)))
            if not _is_harmless(path):
                found.append(f"{path} (removed)" if gone else path)
    return sorted(found)


def changed_since(folders: Iterable[str], since_ns: int, skipped: Sequence[str]) -> list[str]:
    """Return files changed, and folders in which a name was removed, since a time; nothing below the skipped paths."""
    found: list[str] = []
    for looked, (path, status, changed_below) in enumerate(_walk(folders, since_ns, skipped)):
        if looked > MOST_LOOKED_AT or len(found) >= MOST_NAMED:
            break
        if stat.S_ISDIR(status.st_mode):
            if status.st_ctime_ns >= since_ns and not changed_below:
                found.append(f"{path}/ (something in it was removed)")
        elif status.st_ctime_ns >= since_ns:
            found.append(path)
    return sorted(path for path in found if not _is_harmless(path))


def _walk(folders: Iterable[str], since_ns: int, skipped: Sequence[str]) -> Iterator[tuple[str, os.stat_result, bool]]:
    waiting = [folder for folder in folders if os.path.isdir(folder) and not os.path.islink(folder)]
    while waiting:
        folder = waiting.pop()
        changed_below = False
        try:
            status = os.lstat(folder)
            entries = list(os.scandir(folder))
        except OSError:
            continue
        for item in entries:
            if any(is_within(item.path, path) for path in skipped):
                changed_below = True  # what was added or removed may be that
                continue
            try:
                below = item.stat(follow_symlinks=False)
            except OSError:
                continue
            changed_below = changed_below or below.st_ctime_ns >= since_ns
            if stat.S_ISDIR(below.st_mode):
                if below.st_dev == status.st_dev and item.name not in _HARMLESS_PARTS:
                    waiting.append(item.path)
            else:
                yield item.path, below, False
        yield folder, status, changed_below


def _is_harmless(path: str) -> bool:
    return path in _HARMLESS_PATHS or bool(_HARMLESS_PARTS & set(path.split("/")))
