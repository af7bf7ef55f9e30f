"""What the bytes in a cache must be, in pieces of 64 KiB: so that every read is verified, and not only each block that comes.

The block map has a sha256 for each block. To hold every read against it, 1 MiB would have to be read and hashed for 4 KiB that
are asked for (measured: 1.7 ms). So when a block is kept, after it was held against the map, xxh3 of its pieces is noted beside
it (measured: 3 us for a piece). That finds whatever disks, crashes and programs do to a file; it is no protection from who can
write the folder, who is us. Sums that are missing or wrong cost a look at the block map and nothing else: it alone says what is
right.
"""

from __future__ import annotations

import os

import xxhash

PIECE_BYTES = 64 << 10
"""Each size that a block can have is a multiple of it."""
_SUM_BYTES = 16


def file_bytes(image_bytes: int) -> int:
    """Return how long the sums of an image are."""
    return -(-image_bytes // PIECE_BYTES) * _SUM_BYTES


class Sums:
    """The sums of one image, in a file that all its users share: they would write the same."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of a file of `file_bytes`; zeros where nothing is noted yet."""
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
