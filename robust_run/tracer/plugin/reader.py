"""Reading the file that the plugin inside NCCL writes: `glance` for a look at whether anything moves, `read` for all.

The file is read, never mapped: one that a worker cuts short would kill the agent. It may hold anything; nothing here raises, and
nothing takes more memory than a whole file does. Rows change while they are read: an operation whose row was reused meanwhile is
left out, and the counters of a flow are put in their order (each counts what had reached it when it was read).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

from robust_run.tracer.nccl.accounts import Accounts
from robust_run.tracer.nccl.rates import Moves
from robust_run.tracer.nccl.types import Communicator, Flow, NcclGlance, NcclTrace
from robust_run.tracer.plugin import layout
from robust_run.tracer.plugin.rows import Row, account_of, communicator_of, flow_of, glance_of, move_of, op_of

__all__ = ["Levels", "accounts", "communicators", "event_ns", "glance", "in_flight", "levels", "read"]

#: Operations that `read` returns unless told otherwise; enough for a step of most programs.
NEWEST = 512

_HEADER = struct.Struct(f"={layout.HEADER_CELLS}Q")
_COMM = struct.Struct(layout.COMM_FORMAT)
_THREADS = struct.Struct(layout.THREADS_FORMAT)
_FLOW = struct.Struct(layout.FLOW_FORMAT)
_OP = struct.Struct(layout.OP_FORMAT)
_MAGIC_NUMBER = struct.unpack("=Q", layout.MAGIC)[0]
Found = TypeVar("Found")
#: Of each flow, by its key as the file has it: the four counters, and how many operations are in flight.
Levels = dict[int, tuple[int, ...]]


def glance(path: str) -> NcclGlance | None:
    """Return how the tracing of a rank is doing; None if there is no such file, or of another version. Never raises."""
    return _looked_at(path, lambda _, cells: glance_of(cells))


def read(path: str, newest: int = NEWEST, *, with_flows: bool = True) -> NcclTrace | None:
    """Return what a file says, with its `newest` operations. None as for `glance`. Never raises."""

    def all_of(descriptor: int, cells: Row) -> NcclTrace:
        return NcclTrace(
            glance=glance_of(cells),
            communicators=tuple(_communicators(descriptor)),
            flows=tuple(_flows(descriptor, cells[layout.FLOWS_CELL])) if with_flows else (),
            ops=tuple(map(op_of, _whole_rows(descriptor, cells[layout.OPS_CELL], newest))),
        )

    return _looked_at(path, all_of)


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
    found = _looked_at(path, lambda descriptor, _: any(level[-1] for level in levels(descriptor).values()))
    return found or False


def communicators(path: str) -> tuple[Communicator, ...]:
    """Return the communicators of a rank, oldest first; none where `read` returns None. Never raises."""
    return _looked_at(path, lambda descriptor, _: tuple(_communicators(descriptor))) or ()


def moved(path: str, newest: int) -> Moves | None:
    """Return what the `newest` operations moved, a fifth of the work of `read`. None as for `glance`. Never raises."""

    def moves_of(descriptor: int, cells: Row) -> Moves:
        names = {communicator.serial: communicator.name for communicator in _communicators(descriptor)}
        rows = map(move_of, _whole_rows(descriptor, cells[layout.OPS_CELL], newest))
        return Moves(cells[layout.PID_CELL], cells[layout.OPS_CELL], names, tuple(rows))

    return _looked_at(path, moves_of)


def accounts(path: str, now_s: float, most: int = layout.FLOWS) -> Accounts | None:
    """Return what a trace has added up so far, without flows if it has more than `most`; `now_s`: monotonic. None as for
    `glance`. Never raises."""

    def all_of(descriptor: int, cells: Row) -> Accounts:
        count = cells[layout.FLOWS_CELL]
        rows = _rows(descriptor, _FLOW, layout.FLOWS_AT, min(count, layout.FLOWS) if count <= most else 0)
        found = [account_of(row) for row in rows if row[layout.KEY] & layout.KEY_USED]
        return Accounts(
            at_s=now_s,
            pid=cells[layout.PID_CELL],
            busy_s=cells[layout.BUSY_CELL] / 1e9,
            ran_s=cells[layout.RAN_CELL] / 1e9,
            communicators=_communicators(descriptor),
            flows=dict(one for one in found if one is not None),
        )

    return _looked_at(path, all_of)


def _looked_at(path: str, look: Callable[[int, Row], Found]) -> Found | None:
    """Return what a look at an open file and the cells of its header gives; None if it is no file of this version."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        cells = _cells(descriptor)
        return None if cells is None else look(descriptor, cells)
    finally:
        os.close(descriptor)


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


def _communicators(descriptor: int) -> list[Communicator]:
    """Return the communicators, oldest first."""
    threads = next(iter(_rows(descriptor, _THREADS, layout.THREADS_AT, 1)), (0,) * layout.COMMS)
    rows = enumerate(_rows(descriptor, _COMM, layout.COMMS_AT, layout.COMMS))
    found = [
        communicator_of(row, threads[index])
        for index, row in rows
        if row[layout.SERIAL] and row[layout.SERIAL] % layout.COMMS == index
    ]
    return sorted(found, key=lambda communicator: communicator.serial)


def _flows(descriptor: int, count: int) -> Iterator[Flow]:
    """Yield the flows, in the order of their first use."""
    for row in _rows(descriptor, _FLOW, layout.FLOWS_AT, min(count, layout.FLOWS)):
        if row[layout.KEY] & layout.KEY_USED:
            yield flow_of(row)


def _whole_rows(descriptor: int, head: int, newest: int) -> Iterator[Row]:
    """Yield the rows of the newest operations that were whole, oldest first."""
    count = max(0, min(newest, head, layout.OPS))
    before, after = _ring_rows(descriptor, head, count), _ring_rows(descriptor, head, count)
    for number, row, again in zip(range(head - count + 1, head + 1), before, after, strict=False):
        whole = row[layout.NUMBER] == again[layout.NUMBER] == number
        if whole and row[layout.KIND] & layout.KIND_MASK in (layout.COLLECTIVE_KIND, layout.P2P_KIND):
            yield row


def _ring_rows(descriptor: int, head: int, count: int) -> list[Row]:
    """Return the last `count` rows before `head`, as many as are whole."""
    first = (head - count) % layout.OPS
    until_end = min(count, layout.OPS - first)
    rows = list(_rows(descriptor, _OP, layout.OPS_AT + first * layout.OP_BYTES, until_end))
    if len(rows) == until_end:
        rows += _rows(descriptor, _OP, layout.OPS_AT, count - until_end)
    return rows
