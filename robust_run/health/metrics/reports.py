"""Reads report files (see `ring_format`). A file is a worker's to write, so nothing in it is trusted."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping

import msgspec

from robust_run.health.metrics.ring_format import (
    BODY_AT,
    FILE_BYTES,
    HEAD,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MOST_VALUES,
    NO_STEP,
    SLOT_BYTES,
    SLOTS,
    TIMES,
    VALUE,
    VALUES_AT,
    VERSION,
)

SUFFIX = ".report"


class MetricPoint(msgspec.Struct, frozen=True, kw_only=True):
    """What was said at one moment."""

    at_s: float
    """Monotonic seconds where the script reported it itself; unix seconds where it was read from event files."""
    step: int | None
    values: Mapping[str, float]


class ReportsRead(msgspec.Struct, frozen=True, kw_only=True):
    """What was new in a file."""

    points: tuple[MetricPoint, ...] = ()
    """Oldest first."""
    last: int = 0
    """The newest sequence that was seen; to be handed to the next reading."""


def file_of(folder: str, rank: int) -> str:
    """Return the path of a rank's report file in a folder."""
    return os.path.join(folder, f"rank_{rank}{SUFFIX}")


def read(path: str, after: int = 0) -> ReportsRead:
    """Return what was reported after a sequence number; older ones that were overwritten are passed over. Never raises."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (OSError, ValueError):
        return ReportsRead(last=after)
    try:
        content = os.pread(descriptor, FILE_BYTES, 0)
    except OSError:
        return ReportsRead(last=after)
    finally:
        os.close(descriptor)
    return parse(content, after)


def parse(content: bytes, after: int = 0) -> ReportsRead:
    """Return what a report file's content says. Pure; never raises."""
    if len(content) != FILE_BYTES or HEADER.unpack_from(content)[:3] != (MAGIC, VERSION, SLOTS):
        return ReportsRead(last=after)
    found: dict[int, MetricPoint] = {}
    for slot in range(SLOTS):
        at = HEADER_BYTES + slot * SLOT_BYTES
        sequence, crc, count = HEAD.unpack_from(content, at)
        if sequence <= after or (sequence - 1) % SLOTS != slot or count > MOST_VALUES:
            continue
        if zlib.crc32(memoryview(content)[at + BODY_AT : at + SLOT_BYTES]) == crc:
            found[sequence] = _point(content, at, count)
    ordered = sorted(found)
    return ReportsRead(points=tuple(found[sequence] for sequence in ordered), last=ordered[-1] if ordered else after)


def _point(content: bytes, at: int, count: int) -> MetricPoint:
    _, monotonic_s, step = TIMES.unpack_from(content, at + BODY_AT)
    values = {}
    for number in range(count):
        name, value = VALUE.unpack_from(content, at + VALUES_AT + number * VALUE.size)
        values[name.rstrip(b"\0").decode("utf-8", "replace")] = value
    return MetricPoint(at_s=monotonic_s, step=None if step == NO_STEP else step, values=values)
