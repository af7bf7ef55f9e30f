"""Files of the cache: opened only where they are plain files of ours, in a folder that only we can write."""

from __future__ import annotations

import os
import stat

from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import CacheRefused
from robust_run.prefetch.types import BlockMap

_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def this_boot() -> bytes:
    """Return the kernel's identifier of this boot, 36 bytes."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read(36).ljust(36)


def open_own(path: str) -> int:
    """Open a plain file of ours for reading and writing; a link, a device or somebody else's file is refused.

    Raises `CacheRefused`, OSError.
    """
    descriptor = os.open(path, _FILE_FLAGS, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise CacheRefused(f"{path}: it is not a plain file of ours: remove it, or name another --image-cache folder")
    return descriptor


def check_folder(path: str) -> None:
    """Raise `CacheRefused` for a folder that is not ours alone."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise CacheRefused(f"{path}: it is not a folder that only we can write: name another --image-cache folder")


def write_map(folder: str, block_map: BlockMap) -> None:
    """Write the block map into the folder of its image. Raises OSError, `CacheRefused`."""
    descriptor = open_own(os.path.join(folder, "map.json"))
    try:
        os.ftruncate(descriptor, 0)
        write_all(descriptor, blockmap.encode(block_map), 0)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | bytearray | memoryview, offset_bytes: int) -> None:
    """Write all bytes, from an offset on. Raises OSError."""
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, offset_bytes)
        left, offset_bytes = left[done:], offset_bytes + done
