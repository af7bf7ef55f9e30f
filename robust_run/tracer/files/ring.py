"""Reading the ring file of a rank: at a glance, 4 times a second, and whole, when something is wrong.

Files are read, never mapped: a mapping of a file that a worker cuts short would kill the agent. What is read may be
anything; nothing here raises, and nothing takes more memory than a whole ring does.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

import msgspec

from robust_run.tracer.files import phases
from robust_run.tracer.files.ring_content import (
    ENTERED,
    ENTERED_FIELD,
    FAILED,
    INDEX_FIELD,
    LARGEST_WORLD,
    SLOT,
    STATE_FIELD,
    chosen,
    parse_table,
    to_op,
    whole_slots,
)
from robust_run.tracer.files.ring_format import (
    BLOCKED_CELL,
    DOUBT_CELL,
    DOUBTS,
    GIVEN_UP,
    HEAD_CELL,
    HEADER_CELLS,
    LAST_EVENT_CELL,
    MAGIC,
    MAGIC_CELL,
    MARK_BYTES,
    MARKS,
    MARKS_AT,
    PID_CELL,
    RANK_CELL,
    SLOT_BYTES,
    SLOTS,
    SLOTS_AT,
    STATE_CELL,
    STEPS_CELL,
    TABLE_AT,
    TABLE_BYTES,
    TABLE_BYTES_CELL,
    TABLE_GENERATION_CELL,
    VERSION,
    VERSION_CELL,
    WAITING_INDEX_CELL,
    WAITING_SINCE_CELL,
    WORLD_CELL,
    create,
    stacks_signal,
)
from robust_run.tracer.types import RankTrace, StepMark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from robust_run.tracer.flight.types import GroupClock

__all__ = ["RingHeader", "RingReader", "create", "read", "stacks_signal"]

MARKS_READ = 256
TABLE_READINGS = 4

_HEADER = struct.Struct(f"={HEADER_CELLS}Q")
_MARK = struct.Struct("=QQ")
_MAGIC_NUMBER = struct.unpack("=Q", MAGIC)[0]


class RingHeader(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank is doing, at a glance. Times are seconds of the monotonic clock of its node."""

    pid: int
    """Of the process that records; 0: none yet."""
    rank: int
    world_size: int
    ops: int
    """Communication calls begun."""
    steps: int
    last_at_s: float
    """Of the newest event; 0: none yet."""
    blocked_s: float
    """For how long the main thread had waited for peers, all in all, without a wait that goes on."""
    waiting_since_s: float | None
    """Since when the oldest wait of any thread goes on, or the newest call has not returned; None: neither."""
    waiting_index: int | None
    """Number of the call that is waited for; None also where that one is not recorded."""
    events: int
    """Goes up with every change of state: two looks that see the same number saw no progress."""
    given_up: bool
    """The recorder met an error and records no more."""


class RingReader:
    """The ring of one rank, kept open. One that is missing or makes no sense is opened anew at the next look."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1

    def header(self) -> RingHeader | None:
        """Return the header; None if there is no ring of this version. Takes some microseconds. Never raises."""
        cells = self._cells()
        return None if cells is None else self._header_of(cells)

    def clocks(self) -> tuple[float, tuple[GroupClock, ...]] | None:
        """Return what torch counted in the worker's groups after a step, and when; None: nothing is known. To be called where
        `header` has just returned one. Never raises.
        """
        from robust_run.tracer.files import clocks

        content = self._at(clocks.CLOCKS_AT, clocks.CLOCKS_BYTES)
        # What is written meanwhile is read again at the next look.
        return clocks.parse(content) if content == self._at(clocks.CLOCKS_AT, clocks.CLOCKS_BYTES) else None

    def data_waits(self) -> Mapping[int, float]:
        """Return for how many seconds the main thread had waited for its DataLoader by the end of each of the newest steps, by
        step. Empty: it has none. To be called where `header` has just returned one. Never raises.
        """
        from robust_run.tracer.files import data_waits

        before, content, after = self._cells(), self._at(data_waits.DATA_AT, data_waits.DATA_BYTES), self._cells()
        if before is None or after is None:
            return {}
        return data_waits.parse(content, before[STEPS_CELL], after[STEPS_CELL])

    def trace(self, limit: int | None = None) -> RankTrace | None:
        """Return what the ring holds: the newest `limit` calls, and all that are not done. None as for `header`."""
        cells = self._cells()
        if cells is None:
            return None
        slots, again = self._at(SLOTS_AT, SLOTS * SLOT_BYTES), self._at(SLOTS_AT, SLOTS * SLOT_BYTES)
        raw = chosen(whole_slots(slots, again, cells[HEAD_CELL]), limit)
        groups, sites = parse_table(self._table(cells[TABLE_GENERATION_CELL]))
        names = {index: group.name for index, group in groups.items()}
        return RankTrace(
            rank=cells[RANK_CELL],
            world_size=cells[WORLD_CELL],
            pid=cells[PID_CELL],
            steps=cells[STEPS_CELL],
            last_at_s=cells[LAST_EVENT_CELL] / 1e9,
            blocked_s=cells[BLOCKED_CELL] / 1e9,
            ops=tuple(to_op(slot, names, sites) for slot in raw),
            groups=tuple(groups.values()),
            marks=self._marks(cells[STEPS_CELL]),
            doubts=_doubts(cells),
        )

    def _table(self, generation: int) -> bytes:
        """Return the table as it was at one moment, of the generation in which slots were read: numbers in them may mean others
        in the next. Nothing if it has been made anew since, or by a process that died of it.
        """
        for _ in range(TABLE_READINGS):
            before = self._cells()
            content = self._at(TABLE_AT, min(before[TABLE_BYTES_CELL], TABLE_BYTES)) if before is not None else b""
            after = self._cells()
            if before is None or after is None:
                return b""
            if before[TABLE_GENERATION_CELL] == after[TABLE_GENERATION_CELL] and not after[TABLE_GENERATION_CELL] % 2:
                return content if after[TABLE_GENERATION_CELL] == generation else b""
        return b""

    def close(self) -> None:
        """Close the file; the reader may be used again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _cells(self) -> tuple[int, ...] | None:
        """Return the cells of a header that makes sense."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except (OSError, ValueError):
                return None
        content = self._at(0, _HEADER.size)
        if len(content) == _HEADER.size:
            cells: tuple[int, ...] = _HEADER.unpack(content)
            known = cells[MAGIC_CELL] == _MAGIC_NUMBER and cells[VERSION_CELL] == VERSION
            if known and cells[RANK_CELL] < cells[WORLD_CELL] <= LARGEST_WORLD:
                return cells
        self.close()
        return None

    def _at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes, or fewer where the file ends or cannot be read."""
        try:
            return os.pread(self._descriptor, size, offset)
        except (OSError, ValueError):
            return b""

    def _header_of(self, cells: tuple[int, ...]) -> RingHeader:
        since, index = cells[WAITING_SINCE_CELL], cells[WAITING_INDEX_CELL] - 1
        if not since and cells[HEAD_CELL]:
            since, index = self._inside(cells[HEAD_CELL] - 1)
        return RingHeader(
            pid=cells[PID_CELL],
            rank=cells[RANK_CELL],
            world_size=cells[WORLD_CELL],
            ops=cells[HEAD_CELL],
            steps=cells[STEPS_CELL],
            last_at_s=cells[LAST_EVENT_CELL] / 1e9,
            blocked_s=cells[BLOCKED_CELL] / 1e9,
            waiting_since_s=since / 1e9 if since else None,
            waiting_index=index if since and index >= 0 else None,
            events=cells[LAST_EVENT_CELL],
            given_up=cells[STATE_CELL] == GIVEN_UP,
        )

    def _inside(self, index: int) -> tuple[int, int]:
        """Return since when the newest call has been inside torch, and its number; 0 if it is not.

        Connections are made inside the first call of a group (always with NCCL), which may have to wait for peers.
        """
        content = self._at(SLOTS_AT + index % SLOTS * SLOT_BYTES, SLOT_BYTES)
        if len(content) == SLOT_BYTES:
            slot = SLOT.unpack(content)
            if slot[STATE_FIELD] == ENTERED and slot[INDEX_FIELD] == index + 1:
                return slot[ENTERED_FIELD], index
        return 0, -1

    def has_failed(self, index: int) -> bool:
        """Tell whether the call of this number ended in an error; False also where it is not held any more."""
        content = self._at(SLOTS_AT + index % SLOTS * SLOT_BYTES, SLOT_BYTES)
        if len(content) < SLOT_BYTES:
            return False
        slot = SLOT.unpack(content)
        return bool(slot[INDEX_FIELD] == index + 1 and slot[STATE_FIELD] == FAILED)

    def _marks(self, steps: int) -> tuple[StepMark, ...]:
        """Return the marks of the newest steps, oldest first."""
        content = self._at(MARKS_AT, MARKS * MARK_BYTES)
        if len(content) < MARKS * MARK_BYTES:
            return ()
        marks = []
        for number in range(max(0, steps - MARKS_READ), steps):
            at_ns, blocked_ns = _MARK.unpack_from(content, number % MARKS * MARK_BYTES)
            marks.append(StepMark(at_s=at_ns / 1e9, blocked_s=blocked_ns / 1e9))
        return tuple(marks)


def _doubts(cells: tuple[int, ...]) -> tuple[str, ...]:
    """Return why what a ring's calls look like proves nothing."""
    found = tuple(why for bit, why in DOUBTS.items() if cells[DOUBT_CELL] & bit)
    return (*found, "records no more") if cells[STATE_CELL] == GIVEN_UP else found


def read(path: str, limit: int | None = None, *, with_phases: bool = False) -> RankTrace | None:
    """Return what a ring holds, as `RingReader.trace` does, and what lies beside it of the phases of steps."""
    reader = RingReader(path)
    try:
        trace = reader.trace(limit)
    finally:
        reader.close()
    if trace is None or not with_phases:
        return trace
    return msgspec.structs.replace(trace, phases=phases.read(phases.beside(path)))
