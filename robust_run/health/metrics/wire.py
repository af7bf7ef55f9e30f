"""The wire format of protocol buffers, as far as event files need it.

Pure; what is damaged ends the reading, and raises nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_FIELDS = 100_000


def fields(message: bytes) -> Iterator[tuple[int, int, bytes | int]]:
    """Yield (number, wire type, value) of each field up to the first damaged one; fixed numbers come as bytes."""
    at = 0
    for _ in range(_MOST_FIELDS):
        if at >= len(message):
            return
        key, at = varint(message, at)
        number, kind = key >> 3, key & 7
        if at < 0 or number == 0:
            return
        if kind == _VARINT:
            value, at = varint(message, at)
            if at < 0:
                return
            yield number, kind, value
            continue
        if kind == _BYTES:
            length, at = varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            return
        if at < 0 or length > len(message) - at:
            return
        yield number, kind, message[at : at + length]
        at += length


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends; -1 for a damaged one."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            return 0, -1
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, -1


def signed(value: int) -> int:
    """Return a 64-bit varint as the signed number that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def double(content: bytes | int) -> float | None:
    """Return a fixed number of 8 or 4 bytes; None for anything else."""
    if not isinstance(content, bytes) or len(content) not in (4, 8):
        return None
    found: float = (_DOUBLE if len(content) == 8 else _FLOAT).unpack(content)[0]
    return found
