"""Reading the file that the plugin inside NCCL writes: `glance` for a look at whether anything moves, `read` for all.

The file is read, never mapped: one that a worker cuts short would kill the agent. It may hold anything; nothing here raises, and
nothing takes more memory than a whole file does. Rows change while they are read: an operation whose row was reused meanwhile is
left out, and the counters of a flow are put in their order (each counts what had reached it when it was read).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from robust_run.tracer.nccl.rates import Move, Moves
from robust_run.tracer.nccl.types import Communicator, Flow, NcclGlance, NcclOp, NcclTrace
from robust_run.tracer.plugin import layout

__all__ = ["Levels", "communicators", "event_ns", "glance", "in_flight", "levels", "read"]

#: Operations that `read` returns unless told otherwise; enough for a step of most programs.
NEWEST = 512

_HEADER = struct.Struct(f"={layout.HEADER_CELLS}Q")
_COMM = struct.Struct(layout.COMM_FORMAT)
_FLOW = struct.Struct(layout.FLOW_FORMAT)
_OP = struct.Struct(layout.OP_FORMAT)
_MAGIC_NUMBER = struct.unpack("=Q", layout.MAGIC)[0]
Row = tuple[int, ...]
#: Of each flow, by its key as the file has it: the four counters, and how many operations are in flight.
Levels = dict[int, tuple[int, ...]]


def glance(path: str) -> NcclGlance | None:
    """Return how the tracing of a rank is doing; None if there is no such file, or of another version. Never raises."""
    descriptor = _open(path)
    if descriptor is None:
        return None
    try:
        cells = _cells(descriptor)
        return None if cells is None else _glance_of(cells)
    finally:
        os.close(descriptor)


def read(path: str, newest: int = NEWEST, *, with_flows: bool = True) -> NcclTrace | None:
    """Return what a file says, with its `newest` operations. None as for `glance`. Never raises."""
    descriptor = _open(path)
    if descriptor is None:
        return None
    try:
        cells = _cells(descriptor)
        if cells is None:
            return None
        return NcclTrace(
            glance=_glance_of(cells),
            communicators=tuple(_communicators(descriptor)),
            flows=tuple(_flows(descriptor, cells[layout.FLOWS_CELL])) if with_flows else (),
            ops=tuple(map(_op_of, _whole_rows(descriptor, cells[layout.OPS_CELL], newest))),
        )
    finally:
        os.close(descriptor)


def event_ns(descriptor: int) -> int:
    """Return the time of the newest event in a file that is open; 0: none, no plugin writes it, or it is none. Never raises."""
    cells = _cells(descriptor)
    return cells[layout.EVENT_CELL] if cells is not None and cells[layout.PID_CELL] else 0


def levels(descriptor: int) -> Levels:
    """Return the counters of all flows in a file that is open: what a look needs that is taken often. Never raises."""
    cells = _cells(descriptor)
    if cells is None:
        return {}
    count = min(cells[layout.FLOWS_CELL], layout.FLOWS)
    return {
        row[layout.KEY]: (*row[layout.LEVELS], max(0, row[layout.FLOW_OPENED] - row[layout.FLOW_CLOSED]))
        for row in _rows(descriptor, _FLOW, layout.FLOWS_AT, count)
        if row[layout.KEY] & layout.KEY_USED
    }


def in_flight(path: str) -> bool:
    """Tell whether a rank has anything in flight. Never raises."""
    descriptor = _open(path)
    if descriptor is None:
        return False
    try:
        return any(level[-1] for level in levels(descriptor).values())
    finally:
        os.close(descriptor)


def communicators(path: str) -> tuple[Communicator, ...]:
    """Return the communicators of a rank, oldest first; none where `read` returns None. Never raises."""
    descriptor = _open(path)
    if descriptor is None:
        return ()
    try:
        return tuple(_communicators(descriptor)) if _cells(descriptor) is not None else ()
    finally:
        os.close(descriptor)


def moved(path: str, newest: int) -> Moves | None:
    """Return what the `newest` operations moved, a fifth of the work of `read`. None as for `glance`. Never raises."""
    descriptor = _open(path)
    if descriptor is None:
        return None
    try:
        cells = _cells(descriptor)
        if cells is None:
            return None
        names = {communicator.serial: communicator.name for communicator in _communicators(descriptor)}
        rows = map(_move_of, _whole_rows(descriptor, cells[layout.OPS_CELL], newest))
        return Moves(cells[layout.PID_CELL], cells[layout.OPS_CELL], names, tuple(rows))
    finally:
        os.close(descriptor)


def _open(path: str) -> int | None:
    """Return a descriptor of the file, None if there is none."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None


def _at(descriptor: int, offset: int, size: int) -> bytes:
    """Return `size` bytes, or fewer where the file ends or cannot be read."""
    try:
        return os.pread(descriptor, size, offset)
    except OSError:
        return b""


def _rows(descriptor: int, form: struct.Struct, at: int, count: int) -> Iterator[Row]:
    """Return the rows of a region, as many as are whole."""
    content = _at(descriptor, at, form.size * count)
    return form.iter_unpack(content[: len(content) - len(content) % form.size])


def _cells(descriptor: int) -> Row | None:
    """Return the cells of a header that makes sense."""
    content = _at(descriptor, 0, _HEADER.size)
    if len(content) < _HEADER.size:
        return None
    cells: Row = _HEADER.unpack(content)
    known = cells[layout.MAGIC_CELL] == _MAGIC_NUMBER and cells[layout.VERSION_CELL] == layout.VERSION
    return cells if known else None


def _glance_of(cells: Row) -> NcclGlance:
    return NcclGlance(
        pid=cells[layout.PID_CELL],
        api=cells[layout.API_CELL],
        communicators=cells[layout.COMMS_CELL],
        ops=cells[layout.OPS_CELL],
        event_s=_seconds(cells[layout.EVENT_CELL]),
        dropped=cells[layout.DROPPED_CELL],
        foreign=cells[layout.FOREIGN_CELL],
        unknown=cells[layout.UNKNOWN_CELL],
        stale=cells[layout.STALE_CELL],
    )


def _communicators(descriptor: int) -> list[Communicator]:
    """Return the communicators, oldest first."""
    found = []
    for index, row in enumerate(_rows(descriptor, _COMM, layout.COMMS_AT, layout.COMMS)):
        if row[layout.SERIAL] == 0 or row[layout.SERIAL] % layout.COMMS != index:
            continue
        found.append(
            Communicator(
                serial=row[layout.SERIAL],
                hash=row[layout.HASH],
                name=_text(row[layout.NAME]),
                rank=_known(row[layout.RANK]),
                ranks=_known(row[layout.RANKS]),
                nodes=_known(row[layout.NODES]),
                opened_s=row[layout.COMM_OPENED] / 1e9,
                closed_s=_seconds(row[layout.COMM_CLOSED]),
            )
        )
    return sorted(found, key=lambda communicator: communicator.serial)


def _flows(descriptor: int, count: int) -> Iterator[Flow]:
    """Yield the flows, in the order of their first use."""
    for row in _rows(descriptor, _FLOW, layout.FLOWS_AT, min(count, layout.FLOWS)):
        if row[layout.KEY] & layout.KEY_USED:
            yield _flow_of(row)


def _flow_of(row: Row) -> Flow:
    """Return what a row of a flow says."""
    key, levels = row[layout.KEY], list(row[layout.LEVELS])
    for rung in (
        2,
        1,
        0,
    ):  # a step counts on the lower rungs first: what is missing there was added while this was read
        levels[rung] = max(levels[rung], levels[rung + 1])
    at = [_seconds(value) for value in row[layout.LEVEL_TIMES]]
    place = layout.flow_key(key)
    return Flow(
        comm=place.comm,
        foreign=place.foreign,
        rank=_signed(row[layout.ORIGIN] >> 32, 32),
        channel=place.channel,
        peer=place.peer,
        direction="send" if place.sends else "recv",
        op=_known(row[layout.FLOW_OP]),
        op_seq=row[layout.FLOW_SEQ],
        op_started_s=_seconds(row[layout.OP_AT]),
        op_base=row[layout.OP_BASE],
        op_steps=row[layout.OP_STEPS],
        steps=row[layout.STEPS],
        posted=levels[0],
        gpu_ready=levels[1],
        transmitted=levels[2],
        done=levels[3],
        posted_s=at[0],
        gpu_ready_s=at[1],
        transmitted_s=at[2],
        done_s=at[3],
        bytes=row[layout.FLOW_BYTES_MOVED],
        open_ops=max(0, row[layout.FLOW_OPENED] - row[layout.FLOW_CLOSED]),
    )


def _whole_rows(descriptor: int, head: int, newest: int) -> Iterator[Row]:
    """Yield the rows of the newest operations that were whole, oldest first."""
    count = max(0, min(newest, head, layout.OPS))
    before, after = _ring_rows(descriptor, head, count), _ring_rows(descriptor, head, count)
    for number, row, again in zip(range(head - count + 1, head + 1), before, after, strict=False):
        whole = row[layout.NUMBER] == again[layout.NUMBER] == number
        if whole and row[layout.KIND] in (layout.COLLECTIVE_KIND, layout.P2P_KIND):
            yield row


def _ring_rows(descriptor: int, head: int, count: int) -> list[Row]:
    """Return the last `count` rows before `head`, as many as are whole."""
    first = (head - count) % layout.OPS
    until_end = min(count, layout.OPS - first)
    rows = list(_rows(descriptor, _OP, layout.OPS_AT + first * layout.OP_BYTES, until_end))
    if len(rows) == until_end:
        rows += _rows(descriptor, _OP, layout.OPS_AT, count - until_end)
    return rows


def _op_of(row: Row) -> NcclOp:
    """Return what a row of an operation says."""
    return NcclOp(
        number=row[layout.NUMBER] - 1,
        comm=row[layout.OP_COMM],
        kind="collective" if row[layout.KIND] == layout.COLLECTIVE_KIND else "p2p",
        func=_text(row[layout.FUNC]),
        seq=row[layout.SEQ],
        count=row[layout.COUNT],
        dtype=_text(row[layout.TYPE]).removeprefix("nccl").lower(),
        peer=row[layout.PEER],
        started_s=row[layout.STARTED] / 1e9,
        stopped_s=_seconds(row[layout.STOPPED]),
        proxy_first_s=_seconds(row[layout.PROXY_FIRST]),
        proxy_last_s=_seconds(row[layout.PROXY_LAST]),
        opened=row[layout.OPENED],
        closed=row[layout.CLOSED],
        sent_bytes=row[layout.SENT],
        received_bytes=row[layout.RECEIVED],
        kernel_first_s=_seconds(row[layout.KERNEL_FIRST]),
        kernel_last_s=_seconds(row[layout.KERNEL_LAST]),
    )


def _move_of(row: Row) -> Move:
    """Return what a row of an operation says it moved."""
    first, last = row[layout.PROXY_FIRST], row[layout.PROXY_LAST]
    return Move(
        row[layout.NUMBER] - 1,
        row[layout.OP_COMM],
        _seconds(row[layout.STOPPED]),
        row[layout.OPENED],
        row[layout.CLOSED],
        row[layout.SENT],
        row[layout.RECEIVED],
        (last - first) / 1e9 if last > first > 0 else 0.0,
    )


def _seconds(value: int) -> float | None:
    """Return a time in seconds; None for never."""
    return value / 1e9 if value else None


def _known(value: int) -> int | None:
    """Return a number that was written plus one; None where nothing was written."""
    return value - 1 if value else None


def _signed(value: int, bits: int) -> int:
    """Return a number of so many bits with its sign."""
    return value - (1 << bits) if value >> (bits - 1) else value


def _text(content: object) -> str:
    """Return text that ends at its first zero byte, fit to be shown: a program chooses it."""
    assert isinstance(content, bytes)
    text = content.partition(b"\0")[0].decode("utf-8", errors="replace")
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
