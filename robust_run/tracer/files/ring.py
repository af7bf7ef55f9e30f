"""Reading the ring file of a rank: at a glance, 4 times a second, and whole, when something is wrong.

Files are read, never mapped: a mapping of a file that a worker cuts short would kill the agent. What is read may be
anything; nothing here raises, and nothing takes more memory than a whole ring does.
"""

from __future__ import annotations

import os
import struct

import msgspec

from robust_run.tracer.files.ring_format import (
    BLOCKED_CELL,
    DTYPES,
    GIVEN_UP,
    HEAD_CELL,
    HEADER_CELLS,
    LAST_EVENT_CELL,
    MAGIC,
    MAGIC_CELL,
    MARK_BYTES,
    MARKS,
    MARKS_AT,
    OPS,
    PID_CELL,
    RANK_CELL,
    SLOT_BYTES,
    SLOT_FORMAT,
    SLOTS,
    SLOTS_AT,
    STATE_CELL,
    STATES,
    STEPS_CELL,
    TABLE_AT,
    TABLE_BYTES,
    TABLE_BYTES_CELL,
    VERSION,
    VERSION_CELL,
    WAITING_INDEX_CELL,
    WAITING_SINCE_CELL,
    WORLD_CELL,
    create,
    stacks_signal,
)
from robust_run.tracer.types import Group, Op, RankTrace, StepMark

__all__ = ["RingHeader", "RingReader", "create", "read", "stacks_signal"]

MARKS_READ = 256
LARGEST_WORLD = 1 << 20
#: Ranks of all groups of a ring together; beyond it the groups of a garbled table would fill the memory.
MOST_RANKS = 1 << 18
#: A group's time limit above it (some 115 days) is none.
LONGEST_LIMIT_MS = 10_000_000_000
#: Calls that threads of the writer may have begun without having counted them yet.
AHEAD = 1024

_HEADER = struct.Struct(f"={HEADER_CELLS}Q")
_SLOT = struct.Struct(SLOT_FORMAT)
_MARK = struct.Struct("=QQ")
_MAGIC_NUMBER = struct.unpack("=Q", MAGIC)[0]
_ENTERED, _ISSUED, _WAITING = range(3)


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

    def trace(self, limit: int | None = None) -> RankTrace | None:
        """Return what the ring holds: the newest `limit` calls, and all that are not done. None as for `header`."""
        cells = self._cells()
        if cells is None:
            return None
        slots, again = self._at(SLOTS_AT, SLOTS * SLOT_BYTES), self._at(SLOTS_AT, SLOTS * SLOT_BYTES)
        raw = chosen(whole_slots(slots, again, cells[HEAD_CELL]), limit)
        table = self._at(TABLE_AT, min(cells[TABLE_BYTES_CELL], TABLE_BYTES))
        groups, sites = parse_table(table)
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
        )

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
            slot = _SLOT.unpack(content)
            if slot[STATE_FIELD] == _ENTERED and slot[INDEX_FIELD] == index + 1:
                return slot[ENTERED_FIELD], index
        return 0, -1

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


Slot = tuple[int, ...]
(
    ENTERED_FIELD,
    WAIT_FIELD,
    DONE_FIELD,
    NUMEL_FIELD,
    SEQ_FIELD,
    SITE_FIELD,
    PEER_FIELD,
    GROUP_FIELD,
    THREAD_FIELD,
    OP_FIELD,
    STATE_FIELD,
    DTYPE_FIELD,
    INDEX_FIELD,
) = range(13)


def whole_slots(content: bytes, again: bytes, head: int) -> list[Slot]:
    """Return the slots that were whole while the region was read twice, oldest first."""
    found: list[Slot] = []
    if len(content) != SLOTS * SLOT_BYTES or len(again) != len(content):
        return found
    numbers = memoryview(again).cast("Q")
    for position, slot in enumerate(_SLOT.iter_unpack(content)):
        number = slot[INDEX_FIELD]
        if number == 0 or number != numbers[position * 8 + 7] or (number - 1) % SLOTS != position:
            continue
        if number <= head + AHEAD and 0 < slot[OP_FIELD] < len(OPS) and slot[STATE_FIELD] < len(STATES):
            found.append(slot)
    found.sort(key=lambda slot: slot[INDEX_FIELD])
    return found


def chosen(slots: list[Slot], limit: int | None) -> list[Slot]:
    """Return the newest `limit` slots and those before them whose call is not done."""
    if limit is None or limit >= len(slots):
        return slots
    cut = len(slots) - max(0, limit)
    return [slot for slot in slots[:cut] if slot[STATE_FIELD] <= _WAITING] + slots[cut:]


def to_op(slot: Slot, groups: dict[int, str], sites: dict[int, str]) -> Op:
    """Return what a slot says, in words."""
    waited, done, dtype = slot[WAIT_FIELD], slot[DONE_FIELD], slot[DTYPE_FIELD]
    return Op(
        group=groups.get(slot[GROUP_FIELD], ""),
        op=OPS[slot[OP_FIELD]],
        seq=slot[SEQ_FIELD],
        state=STATES[slot[STATE_FIELD]],
        at_s=slot[ENTERED_FIELD] / 1e9,
        waiting_at_s=waited / 1e9 if waited else None,
        done_at_s=done / 1e9 if done else None,
        numel=slot[NUMEL_FIELD],
        dtype=DTYPES[dtype] if dtype < len(DTYPES) else "",
        peer=slot[PEER_FIELD],
        site=sites.get(slot[SITE_FIELD], ""),
        thread=slot[THREAD_FIELD],
    )


def parse_table(content: bytes) -> tuple[dict[int, Group], dict[int, str]]:
    """Return groups and call sites by their index, as far as the lines make sense."""
    groups: dict[int, Group] = {}
    sites: dict[int, str] = {}
    limits_s: dict[int, float] = {}
    room = MOST_RANKS
    for line in content.decode("utf-8", errors="replace").split("\n"):
        kind, _, rest = line.partition("\t")
        fields = rest.split("\t")
        index = small_number(fields[0], 1 << 32)
        if index is None:
            continue
        if kind == "s" and len(fields) == 2:
            sites[index] = fields[1]
        elif kind == "g" and len(fields) == 4:
            ranks = parse_ranks(fields[3], room)
            if ranks is not None:
                groups[index] = Group(name=fields[1], desc=fields[2], ranks=ranks)
                room -= len(ranks)
        elif kind == "t" and len(fields) == 2:
            limits_s[index] = (small_number(fields[1], LONGEST_LIMIT_MS) or 0) / 1e3
    for index, limit_s in limits_s.items():
        if index in groups:
            groups[index] = msgspec.structs.replace(groups[index], limit_s=limit_s)
    return groups, sites


def parse_ranks(text: str, room: int) -> tuple[int, ...] | None:
    """Return the ranks of `0-3,8,16-64/16`; None if that is no such list, or one of more than `room` ranks."""
    ranks: list[int] = []
    for part in text.split(",") if text else ():
        run, _, step_text = part.partition("/")
        first_text, dash, last_text = run.partition("-")
        first = small_number(first_text, LARGEST_WORLD)
        last = small_number(last_text, LARGEST_WORLD) if dash else first
        step = small_number(step_text, LARGEST_WORLD) if step_text else 1
        if first is None or last is None or not step:
            return None
        run_of_ranks = range(first, last + 1, step)
        if len(ranks) + len(run_of_ranks) > room:
            return None
        ranks.extend(run_of_ranks)
    return tuple(ranks)


def small_number(text: str, limit: int) -> int | None:
    """Return a number below `limit` that is written in plain digits."""
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    number = int(text)
    return number if number < limit else None


def read(path: str, limit: int | None = None) -> RankTrace | None:
    """Return what a ring holds, as `RingReader.trace` does."""
    reader = RingReader(path)
    try:
        return reader.trace(limit)
    finally:
        reader.close()
