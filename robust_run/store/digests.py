"""Content digests: xxh3_128, 16 bytes, some 30 GB/s on one core, without the GIL. Against accidents, not against attackers."""

from __future__ import annotations

from collections.abc import Iterable

import xxhash

#: Length of a digest.
DIGEST_BYTES = 16


def digest(*buffers: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of the buffers, one after the other (canonical byte order, as `xxh128sum` prints it)."""
    if len(buffers) == 1:
        return xxhash.xxh3_128_digest(buffers[0])
    return digest_of(buffers)


def digest_of(buffers: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """Return the digest of a stream of buffers."""
    state = xxhash.xxh3_128()
    for buffer in buffers:
        state.update(buffer)
    return state.digest()
