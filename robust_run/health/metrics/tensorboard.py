"""Reads scalars from TensorBoard's event files while they grow (torch.utils.tensorboard, tensorboardX, TensorFlow, Lightning).

A file is a row of TFRecords: length (8 bytes), its CRC (4), data, the data's CRC (4). Data is an `Event` of TensorFlow's
event.proto. The library that reads them weighs 20 MB and imports protobuf; scalars need three messages. A record's length is
checked by its CRC; where that is wrong, the next whole record is looked for. The data's CRC is checked where it says NaN or
infinity, which has consequences.
"""

from __future__ import annotations

import math
import re
import struct

import msgspec

from robust_run.health.metrics.reports import MetricPoint
from robust_run.health.metrics.wire import double, fields, signed

MOST_RECORD_BYTES = 64 << 10
"""Larger records are pictures or graphs, and passed over."""
MOST_LENGTH_BYTES = 1 << 40
"""A longer record is no record."""
MOST_TRIES = 50_000
"""Places at which a record is looked for in one reading: 0.1 s of work."""
_HEAD = struct.Struct("<QI")
_FOOT_BYTES = 4
_FLOAT, _DOUBLE = 1, 2
_MASK = 0xA282EAD8
_PERHAPS_HEAD = re.compile(rb"(?=(?:[^\0].|\0[^\0])\0{6})", re.DOTALL)
"""Where the length of a small record may lie."""


class EventFileChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a file from one place on."""

    points: tuple[MetricPoint, ...]
    used_bytes: int
    """How much of it is done with; the next reading starts there. May lie beyond what was given: a large record to pass over."""
    damaged_at: int | None = None
    """Where the first damage begins, if there is any."""
    is_lost: bool = False
    """No whole record was found after the last damage so far."""


def parse(content: bytes) -> EventFileChunk:
    """Return the scalars in whole records; a record that is still being written is left for the next time. Pure."""
    points: list[MetricPoint] = []
    at, damaged_at = 0, None
    while len(content) - at >= _HEAD.size:
        if not _is_head(content, at):
            damaged_at = at if damaged_at is None else damaged_at
            found, at = _next_head(content, at + 1)
            if not found:
                return EventFileChunk(points=tuple(points), used_bytes=at, damaged_at=damaged_at, is_lost=True)
        length, _ = _HEAD.unpack_from(content, at)
        end = at + _HEAD.size + length + _FOOT_BYTES
        if length > MOST_RECORD_BYTES:
            at = end
            continue
        if end > len(content):
            break
        data, foot = content[at + _HEAD.size : end - _FOOT_BYTES], content[end - _FOOT_BYTES : end]
        point = _event(data)
        if point is not None and not all(map(math.isfinite, point.values.values())) and not _is_crc_of(data, foot):
            damaged_at, point = at if damaged_at is None else damaged_at, None
        if point is not None:
            points.append(point)
        at = end
    return EventFileChunk(points=tuple(points), used_bytes=at, damaged_at=damaged_at)


def _is_head(content: bytes, at: int) -> bool:
    length, crc = _HEAD.unpack_from(content, at)
    return bool(length <= MOST_LENGTH_BYTES and masked_crc(content[at : at + 8]) == crc)


def _next_head(content: bytes, at: int) -> tuple[bool, int]:
    """Return whether a record's head was found from a place on, and where; or from where on it is to be looked for later."""
    last = len(content) - _HEAD.size
    for tries, found in enumerate(_PERHAPS_HEAD.finditer(content, at)):
        if found.start() > last or tries == MOST_TRIES:
            return False, found.start()
        if _is_head(content, found.start()):
            return True, found.start()
    return False, max(at, last + 1)


def _is_crc_of(data: bytes, foot: bytes) -> bool:
    return masked_crc(data) == int.from_bytes(foot, "little")


def _event(message: bytes) -> MetricPoint | None:
    """Event: wall_time = 1, step = 2, summary = 5."""
    at_s, step, values = 0.0, 0, {}
    for number, _, value in fields(message):
        if number == 1:
            at_s = double(value) or 0.0
        elif number == 2 and isinstance(value, int):
            step = signed(value)
        elif number == 5 and isinstance(value, bytes):
            values.update(_summary(value))
    return MetricPoint(at_s=at_s, step=step, values=values) if values else None


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
