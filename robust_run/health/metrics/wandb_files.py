"""Reads numbers from wandb's run files (`run-*.wandb`) while they grow.

A file is a log in LevelDB's format: blocks of 32 KiB, in each a row of pieces (CRC 4 bytes, length 2, type 1), after 7 bytes
that name the format. Pieces make up records: messages `Record` of wandb's protocol, of which `history` has one item for each
number that was logged, as JSON.
"""

from __future__ import annotations

import struct

import msgspec

from robust_run.health.metrics.reports import MetricPoint
from robust_run.health.metrics.tensorboard import EventFileChunk
from robust_run.health.metrics.wire import fields

MAGIC = b":W&B"
START_BYTES = 7
BLOCK_BYTES = 32768
_HEAD = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
MOST_RECORD_BYTES = 1 << 20
_HISTORY, _ITEM = 2, 1
_KEY, _NESTED_KEY, _JSON = 1, 2, 16


def parse(content: bytes, offset: int) -> EventFileChunk:
    """Return the numbers in whole records of what lies at `offset` of a file; after damage, from the next block on. Pure."""
    points: list[MetricPoint] = []
    at = used = 0
    damaged_at = None
    if offset == 0:
        if len(content) < START_BYTES:
            return EventFileChunk(points=(), used_bytes=0)
        if not content.startswith(MAGIC):
            return EventFileChunk(points=(), used_bytes=0, damaged_at=0, is_lost=True)
        at = used = START_BYTES
    record: bytes | None = None
    while True:
        left = BLOCK_BYTES - (offset + at) % BLOCK_BYTES
        if left < _HEAD.size:  # the end of a block is padded
            at += left
            continue
        if len(content) - at < _HEAD.size:
            break
        _, length, kind = _HEAD.unpack_from(content, at)
        if length > left - _HEAD.size or kind not in (_FULL, _FIRST, _MIDDLE, _LAST):
            damaged_at = at if damaged_at is None else damaged_at
            record, at = None, at + left
            used = at
            continue
        end = at + _HEAD.size + length
        if end > len(content):
            break
        piece = content[at + _HEAD.size : end]
        record = piece if kind in (_FULL, _FIRST) else record + piece if record is not None else None
        at = end
        if kind in (_FULL, _LAST):
            point = _record(record) if record is not None else None
            points += [point] if point is not None else []
            record = None
        elif record is not None and len(record) > MOST_RECORD_BYTES:  # no numbers: passed over
            record = None
        used = at if record is None else used
    return EventFileChunk(points=tuple(points), used_bytes=used, damaged_at=damaged_at, is_lost=used > len(content))


def _record(message: bytes) -> MetricPoint | None:
    values: dict[str, float] = {}
    for number, _, value in fields(message):
        if number == _HISTORY and isinstance(value, bytes):
            for inner, _, item in fields(value):
                if inner == _ITEM and isinstance(item, bytes):
                    values.update(_item(item))
    if not values:
        return None
    step = values.pop("_step", None)
    at_s = values.pop("_timestamp", 0.0)
    plain = {name: value for name, value in values.items() if not name.startswith("_")}
    return MetricPoint(at_s=at_s, step=int(step) if step is not None and abs(step) < 1 << 53 else None, values=plain)


def _item(message: bytes) -> dict[str, float]:
    names, text = [], b""
    for number, _, value in fields(message):
        if number in (_KEY, _NESTED_KEY) and isinstance(value, bytes):
            names.append(value[:200].decode("utf-8", "replace"))
        elif number == _JSON and isinstance(value, bytes):
            text = value[:100]
    number_ = to_number(text)
    name = ".".join(filter(None, names))
    return {name: number_} if name and number_ is not None else {}


def to_number(text: bytes) -> float | None:
    """Return a JSON number, or NaN and infinities as Python's JSON (and wandb, quoted) writes them; None for anything else."""
    plain = text.strip(b'"')
    special = {b"NaN": "nan", b"Infinity": "inf", b"-Infinity": "-inf"}.get(plain)
    if special is not None:
        return float(special)
    try:
        return msgspec.json.decode(text, type=float)
    except (msgspec.MsgspecError, ValueError):
        return None
