"""Making room in the cache: whole images are removed, those used longest ago first, never one that is in use."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat

import msgspec

_IDENTITY = re.compile(r"[0-9a-f]{64}")
#: Folders that are looked at; a cache has a few.
_MOST_IMAGES = 10_000


class CachedImage(msgspec.Struct, frozen=True, kw_only=True):
    """One image in a cache."""

    identity: str
    """Also the name of its folder."""
    stored_bytes: int
    """Space it takes on the disk."""
    used_s: float
    """When a server last let go of or began to use it, in seconds since the epoch."""


def cached_images(root: str) -> list[CachedImage]:
    """Return the images of a cache, the longest unused first. [] where there is no cache."""
    found = []
    try:
        names = sorted(name for name in os.listdir(root) if _IDENTITY.fullmatch(name))[:_MOST_IMAGES]
    except OSError:
        return []
    for name in names:
        try:
            image = os.lstat(os.path.join(root, name, "image"))
            have = os.lstat(os.path.join(root, name, "have"))
        except OSError:
            continue
        found.append(CachedImage(identity=name, stored_bytes=image.st_blocks * 512, used_s=have.st_mtime))
    return sorted(found, key=lambda image: image.used_s)


def choose(images: list[CachedImage], keep_bytes: int, keep: frozenset[str] = frozenset()) -> list[CachedImage]:
    """Return what to remove, oldest first, so that at most `keep_bytes` stay; those in `keep` stay in any case. Pure."""
    total = sum(image.stored_bytes for image in images)
    chosen = []
    for image in sorted(images, key=lambda image: image.used_s):
        if total <= keep_bytes:
            break
        if image.identity not in keep:
            chosen.append(image)
            total -= image.stored_bytes
    return chosen


def prune(root: str, keep_bytes: int, keep: frozenset[str] = frozenset()) -> list[CachedImage]:
    """Remove images until at most `keep_bytes` are stored, and return those removed. What is in use is passed over."""
    _remove_leftovers(root)
    return [
        image for image in choose(cached_images(root), keep_bytes, keep) if _remove(os.path.join(root, image.identity))
    ]


def _remove_leftovers(root: str) -> None:
    """Finish what a prune that was killed has begun."""
    try:
        names = [
            name for name in os.listdir(root) if _IDENTITY.fullmatch(name[:64]) and name[64:].startswith(".removed.")
        ]
    except OSError:
        return
    for name in names[:_MOST_IMAGES]:
        remove_tree(os.path.join(root, name))


def _remove(folder: str) -> bool:
    """Remove an image's folder if no process uses it. It is renamed first: who opens it now makes a new one."""
    try:
        lock = os.open(os.path.join(folder, "in_use"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        doomed = f"{folder}.removed.{os.getpid()}"
        os.rename(folder, doomed)
        remove_tree(doomed)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


# --- Removing what was unpacked of an image: it may have folders that even their owner may not write.


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
