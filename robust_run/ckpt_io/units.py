"""What is stored of a unit: its bytes as they are, or encoded, and the digest of that. Pure.

The digest is xxh3_128 of what is *stored*: a unit is vouched for before a decoder sees it. It guards against accidents, not
against a user who can write the manifest. A unit that does not get smaller is stored as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from robust_run.ckpt_io.rules.types import Codec
from robust_run.store.digests import digest

Buffer = bytes | bytearray | memoryview
#: Compression of zstd: its fastest; weights gain nothing from more.
ZSTD_LEVEL = 1


class Encoded(NamedTuple):
    """A unit, ready to be stored."""

    buffers: Sequence[Buffer]
    stored_bytes: int
    digest: bytes
    raw: bool
    """Stored as it is."""


def encode(codec: Codec, item_bytes: int, buffers: Sequence[Buffer]) -> Encoded:
    """Encode one unit, given as buffers one behind the other.

    Buffers of a unit that is stored as it is are handed through, not copied.
    """
    size = sum(len(buffer) for buffer in buffers)
    if codec != "none":
        whole = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        stored = _ENCODERS[codec](whole, item_bytes)
        if len(stored) < size:
            return Encoded((stored,), len(stored), digest(stored), False)
    return Encoded(buffers, size, digest(*buffers), True)


def decode(codec: Codec, item_bytes: int, stored: Buffer, size_bytes: int) -> bytes | bytearray:
    """Return the unit that `stored` (not stored as it is) stands for; it must have `size_bytes`.

    No more than that is ever allocated for it, also if `stored` claims more.

    Raises:
        ValueError: It is not what the codec writes, or of another size.
    """
    decoded = _DECODERS[codec](stored, item_bytes, size_bytes)
    if len(decoded) != size_bytes:
        raise ValueError(f"decoded to {len(decoded)} bytes, {size_bytes} expected")
    return decoded


def shuffled(data: Buffer, item_bytes: int) -> bytes:
    """Group the bytes of elements by their place in the element; what remains behind the last whole element stays last."""
    whole = len(data) // item_bytes * item_bytes
    view = memoryview(data)
    planes = [bytes(view[place:whole:item_bytes]) for place in range(item_bytes)]
    return b"".join((*planes, view[whole:]))


def unshuffled(data: Buffer, item_bytes: int) -> bytearray:
    """Undo `shuffled`."""
    plane_bytes, view, restored = len(data) // item_bytes, memoryview(data), bytearray(data)
    for place in range(item_bytes):
        restored[place : plane_bytes * item_bytes : item_bytes] = view[place * plane_bytes : (place + 1) * plane_bytes]
    return restored


def _lz4_encode(data: Buffer, _item_bytes: int) -> bytes:
    import lz4.block  # type: ignore[import-untyped,unused-ignore]

    return bytes(lz4.block.compress(data, store_size=False))


def _lz4_decode(stored: Buffer, _item_bytes: int, size_bytes: int) -> bytes:
    import lz4.block  # type: ignore[import-untyped,unused-ignore]

    try:
        return bytes(lz4.block.decompress(stored, uncompressed_size=size_bytes))
    except lz4.block.LZ4BlockError as error:
        raise ValueError(f"not an lz4 block: {error}") from error


def _zstd_encode(data: Buffer, item_bytes: int) -> bytes:
    import zstandard

    packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=True, write_checksum=False)
    return packer.compress(shuffled(data, item_bytes))


def _zstd_decode(stored: Buffer, item_bytes: int, size_bytes: int) -> bytearray:
    import zstandard

    try:
        claimed = zstandard.get_frame_parameters(stored).content_size
        if claimed != size_bytes:  # it would be allocated as claimed
            raise ValueError(f"zstd frame of {claimed} bytes, {size_bytes} expected")
        plain = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size_bytes)
    except zstandard.ZstdError as error:
        raise ValueError(f"not a zstd frame: {error}") from error
    return unshuffled(plain, item_bytes)


_ENCODERS: dict[Codec, Callable[[Buffer, int], bytes]] = {"lz4": _lz4_encode, "zstd_shuffle": _zstd_encode}
_DECODERS: dict[Codec, Callable[[Buffer, int, int], bytes | bytearray]] = {
    "lz4": _lz4_decode,
    "zstd_shuffle": _zstd_decode,
}
