"""Files of the cache: opened only where they are plain files of ours, in a folder that only we can write."""

from __future__ import annotations

import errno
import os
import stat

import xxhash

from robust_run.prefetch import blockmap
from robust_run.prefetch.errors import CacheRefused
from robust_run.prefetch.rules.types import BlockMap
from robust_run.store.buffers import write_at

_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def this_boot() -> bytes:
    """Return the kernel's identifier of this boot, 36 bytes."""
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read(36).ljust(36)


def open_own(path: str) -> int:
    """Open a plain file of ours for reading and writing; a link, a device or another user's file is refused.

    Raises `CacheRefused`, OSError.
    """
    try:
        descriptor = os.open(path, _FILE_FLAGS, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CacheRefused(f"{path}: it is a symbolic link: remove it, or name another --image-cache folder") from error
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
        write_at(descriptor, blockmap.encode(block_map), 0)
    finally:
        os.close(descriptor)


# --- What the bytes in a cache must be, in pieces of 64 KiB: so that every read is verified, and not only each block that comes.
#
# The block map has a sha256 for each block. To hold every read against it, 1 MiB would have to be read and hashed for 4 KiB that
# are asked for (measured: 1.7 ms). So when a block is kept, after it was held against the map, xxh3 of its pieces is noted beside
# it (measured: 3 us for a piece). That finds all that disks, crashes and programs do to a file; it is no protection from who can
# write the folder, who is us. Sums that are missing or wrong cost a look at the block map and nothing else: it alone says what is
# right.

PIECE_BYTES = 64 << 10
"""Each size that a block can have is a multiple of it."""
_SUM_BYTES = 16


def sums_bytes(image_bytes: int) -> int:
    """Return how long the sums of an image are."""
    return -(-image_bytes // PIECE_BYTES) * _SUM_BYTES


class Sums:
    """The sums of one image, in a file that all its users share: they would write the same."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of a file of `sums_bytes`; zeros where nothing is noted yet."""
        self._descriptor = descriptor

    def note(self, offset_bytes: int, data: bytes | bytearray | memoryview) -> None:
        """Note the sums of right bytes, whole pieces from an offset on; the last of the image may be shorter. Raises OSError."""
        os.pwrite(self._descriptor, _sums_of(data), offset_bytes // PIECE_BYTES * _SUM_BYTES)

    def hold(self, offset_bytes: int, data: bytes | bytearray | memoryview) -> bool:
        """Whether bytes are what was noted, whole pieces as above. Raises OSError."""
        count = -(-len(data) // PIECE_BYTES)
        noted = os.pread(self._descriptor, count * _SUM_BYTES, offset_bytes // PIECE_BYTES * _SUM_BYTES)
        return noted == _sums_of(data)


def _sums_of(data: bytes | bytearray | memoryview) -> bytes:
    view = memoryview(data)
    return b"".join(xxhash.xxh3_128_digest(view[at : at + PIECE_BYTES]) for at in range(0, len(view), PIECE_BYTES))
