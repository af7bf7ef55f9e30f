"""Reads scalars from TensorBoard's event files while they grow (torch.utils.tensorboard, tensorboardX, TensorFlow, Lightning).

A file is a row of TFRecords: length (8 bytes), its CRC (4), data, the data's CRC (4). Data is an `Event` of TensorFlow's
event.proto. The library that reads them weighs 20 MB and imports protobuf; scalars need three messages. A record's length is
checked by its CRC, so a damaged file is given up and never misread for long; the data's CRC is not.
"""

from __future__ import annotations

import struct

import msgspec

from robust_run.health.metrics.reports import Point
from robust_run.health.metrics.wire import double, fields, signed

MOST_RECORD_BYTES = 64 << 10
"""Larger records are pictures or graphs, and passed over."""
_HEAD = struct.Struct("<QI")
_FOOT_BYTES = 4
_FLOAT, _DOUBLE = 1, 2
_MASK = 0xA282EAD8


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a file from one place on."""

    points: tuple[Point, ...]
    used_bytes: int
    """How much of it was whole; the next reading starts there. May lie beyond what was given: a large record to pass over."""
    damaged: bool = False


def parse(content: bytes) -> Chunk:
    """Return the scalars in whole records; a record that is still being written is left for the next time. Pure."""
    points: list[Point] = []
    at = 0
    while len(content) - at >= _HEAD.size:
        length, crc = _HEAD.unpack_from(content, at)
        if masked_crc(content[at : at + 8]) != crc:
            return Chunk(points=tuple(points), used_bytes=at, damaged=True)
        end = at + _HEAD.size + length + _FOOT_BYTES
        if length > MOST_RECORD_BYTES:
            at = end
            continue
        if end > len(content):
            break
        point = _event(content[at + _HEAD.size : end - _FOOT_BYTES])
        if point is not None:
            points.append(point)
        at = end
    return Chunk(points=tuple(points), used_bytes=at)


def _event(message: bytes) -> Point | None:
    """Event: wall_time = 1, step = 2, summary = 5."""
    at_s, step, values = 0.0, 0, {}
    for number, _, value in fields(message):
        if number == 1:
            at_s = double(value) or 0.0
        elif number == 2 and isinstance(value, int):
            step = signed(value)
        elif number == 5 and isinstance(value, bytes):
            values.update(_summary(value))
    return Point(at_s=at_s, step=step, values=values) if values else None


def _summary(message: bytes) -> dict[str, float]:
    """Summary: value = 1, each with tag = 1, simple_value = 2, tensor = 8."""
    found = {}
    for number, _, value in fields(message):
        if number != 1 or not isinstance(value, bytes):
            continue
        tag, scalar = "", None
        for inner, _, content in fields(value):
            if inner == 1 and isinstance(content, bytes):
                tag = content[:200].decode("utf-8", "replace")
            elif inner == 2:
                scalar = double(content)
            elif inner == 8 and isinstance(content, bytes):
                scalar = _tensor(content)
        if tag and scalar is not None:
            found[tag] = scalar
    return found


def _tensor(message: bytes) -> float | None:
    """TensorProto of one number: dtype = 1, tensor_content = 4, float_val = 5, double_val = 6."""
    kind, raw, scalar = 0, b"", None
    for number, _, value in fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 4 and isinstance(value, bytes):
            raw = value
        elif number in (5, 6):
            scalar = double(value)
    width = {_FLOAT: 4, _DOUBLE: 8}.get(kind)
    return scalar if scalar is not None else double(raw) if len(raw) == width else None


def _table() -> tuple[int, ...]:
    """CRC-32C (Castagnoli), by bytes."""
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


_CRC = _table()


def masked_crc(content: bytes) -> int:
    """Return the CRC as TFRecords have it. Slow: for a few bytes."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
