"""Writes the ring of this worker: what its communication calls did, and since when. Python's standard library only.

`sitecustomize` loads this file by its path when torch.distributed is imported, under a name that is in no path. The layout of
the file is that of `robust_run.tracer.ring_format`; a test keeps the two equal. Methods that run with every call take no lock
(a signal handler may communicate too) and allocate next to nothing; they cost some hundred nanoseconds each. Those of
waits and steps raise no Exception, since nothing stands between them and the program; the others leave that to `hooks.py`.
"""

from __future__ import annotations

import os
import struct
import sys
from _thread import get_ident
from itertools import count, islice
from time import monotonic_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType, FrameType
    from typing import Any

MAGIC = b"RBRING\n\0"
VERSION = 1
SLOTS, SLOT_BYTES, SLOTS_AT = 4096, 64, 4096
MARKS, MARKS_AT = 1024, 4096 + 4096 * 64
TABLE_BYTES, TABLE_AT = 1 << 18, 4096 + 4096 * 64 + 1024 * 16
FILE_BYTES = TABLE_AT + TABLE_BYTES
SLOT_FORMAT = "=QQQqIIiHHBBB5xQ"
(
    MAGIC_CELL,
    VERSION_CELL,
    PID_CELL,
    RANK_CELL,
    WORLD_CELL,
    HEAD_CELL,
    STEPS_CELL,
    LAST_EVENT_CELL,
    BLOCKED_CELL,
    WAITING_SINCE_CELL,
    WAITING_INDEX_CELL,
    TABLE_BYTES_CELL,
    STATE_CELL,
) = range(13)
UNARMED, ARMED, GIVEN_UP = range(3)
STATES = ("entered", "issued", "waiting", "done", "failed")
ENTERED, ISSUED, WAITING, DONE, FAILED = range(5)
OPS = tuple(
    " all_reduce broadcast all_gather reduce_scatter all_to_all reduce gather scatter barrier send recv recv_any"
    " init_process_group new_group destroy_process_group ddp_backward".split(" ")
)
DTYPES = tuple(
    " float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 float8_e4m3fn float8_e5m2"
    " float8_e4m3fnuz float8_e5m2fnuz uint16 uint32 uint64 complex32 float8_e8m0fnu float4_e2m1fn_x2".split(" ")
)
WORLD = "(world)"
FRAMES_WALKED = 12
CODES_KEPT = 8192
LINKS_KEPT = 4096
UNKNOWN = -1  # number of a call that has no slot
USER, PACKAGE, MACHINERY = range(3)

pack_slot = struct.Struct(SLOT_FORMAT).pack_into


class Group:
    """A process group, as far as its calls need it."""

    __slots__ = ("index", "next_number", "ranks", "turns")

    def __init__(self, index: int, ranks: Sequence[int]) -> None:
        self.index = index
        self.ranks = ranks
        self.next_number = count(1).__next__  # of its collectives
        self.turns: dict[tuple[int, int], int] = {}  # point-to-point calls so far, by direction and peer

    def global_rank(self, rank: int) -> int:
        """Return the global rank of a rank of this group; -1 if that is not known."""
        return self.ranks[rank] if 0 <= rank < len(self.ranks) else -1

    def next_turn(self, op: int, peer: int) -> int:
        """Count a point-to-point call."""
        turn = self.turns.get((op, peer), 0) + 1
        self.turns[op, peer] = turn
        return turn


class Ring:
    """The mapped file. Once `stop` was called, or in a forked child, nothing is written any more."""

    def __init__(self, path: str, give_up: Callable[[Exception], None]) -> None:
        import mmap

        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < FILE_BYTES:
                raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
            self.octets = memoryview(mmap.mmap(descriptor, FILE_BYTES))
        finally:
            os.close(descriptor)
        self.cells = self.octets.cast("Q")
        if bytes(self.octets[:8]) != MAGIC or self.cells[VERSION_CELL] != VERSION:
            raise ValueError(f"{path} is not a ring of version {VERSION}")
        self.give_up = give_up
        self.pid = os.getpid()
        self.main_thread = get_ident()
        self.recording = False  # begins with the first event
        self.stopped = False
        self.next_index = count().__next__
        self.threads: dict[int, int] = {self.main_thread: 0}
        self.waits: dict[int, tuple[int, int]] = {}  # outermost wait of each thread: since when, number of the call + 1
        self.kinds: dict[
            int, tuple[int, CodeType]
        ] = {}  # by id of the code, which is kept so that the id stays its own
        self.sites: dict[tuple[int, int], int] = {}
        self.entries = count(1).__next__
        self.groups: dict[tuple[str, tuple[int, ...]], Group] = {}
        self.library = os.path.dirname(os.__file__) + os.sep
        os.register_at_fork(after_in_child=self.leave)

    def leave(self) -> None:
        """Record nothing in this process: it is a child of the worker."""
        self.recording, self.stopped = False, True

    def stop(self, reason: Exception) -> None:
        """Give up: say why, and do not look as if we waited for something for ever."""
        self.leave()
        try:
            self.cells[STATE_CELL] = GIVEN_UP
            self.cells[WAITING_SINCE_CELL] = 0
        finally:
            self.give_up(reason)

    def claim(self) -> bool:
        """Begin to record, unless another process of this worker has: the first to communicate or make a step owns the ring."""
        if self.stopped:
            return False
        cells, owner = self.cells, self.cells[PID_CELL]
        if owner not in (0, self.pid):
            if os.path.isdir(f"/proc/{owner}"):
                self.stopped = True
                return False
            cells[TABLE_BYTES_CELL] = cells[STEPS_CELL] = cells[HEAD_CELL] = cells[BLOCKED_CELL] = 0
            self.octets[SLOTS_AT:MARKS_AT] = bytes(MARKS_AT - SLOTS_AT)
        cells[PID_CELL] = self.pid
        cells[STATE_CELL] = ARMED
        cells[WAITING_SINCE_CELL] = 0
        self.recording = True
        return True

    # Calls -------------------------------------------------------------------------------------------------------------

    def enter(self, group: Group, op: int, numel: int, dtype: int, peer: int, seq: int, state: int = ENTERED) -> int:
        """Take a slot for a call that begins now, and return its number; `UNKNOWN` if nothing is recorded."""
        if not self.recording and not self.claim():
            return UNKNOWN
        now = monotonic_ns()
        thread = self.threads.get(get_ident())
        if thread is None:
            thread = self.new_thread()
        index = self.next_index()
        waiting = now if state == WAITING else 0
        site = self.site(sys._getframe(2))
        # pack_into clears the slot and writes field after field, index + 1 last.
        pack_slot(
            self.octets, SLOTS_AT + index % SLOTS * SLOT_BYTES, now, waiting, 0, numel, seq, site, peer, group.index,
            thread, op, state, dtype, index + 1,
        )  # fmt: skip
        cells = self.cells
        cells[HEAD_CELL] = index + 1
        cells[LAST_EVENT_CELL] = now
        return index

    def set_state(self, index: int, state: int) -> None:
        """Note the state of a call, if its slot is still its own."""
        place = (SLOTS_AT >> 3) + (index % SLOTS << 3)
        cells = self.cells
        if index >= 0 and cells[place + 7] == index + 1 and self.recording:
            cells[LAST_EVENT_CELL] = now = monotonic_ns()
            if state >= DONE:
                cells[place + 2] = now
            elif state == WAITING:
                cells[place + 1] = now
            self.octets[(place << 3) + 49] = state

    def begin_wait(self, index: int) -> int:
        """Note that this thread now waits for call `index`, and return since when; 0 if it already waits around that."""
        ident, waits = get_ident(), self.waits
        if not self.recording or ident in waits:
            return 0
        now = monotonic_ns()
        try:
            waits[ident] = now, index + 1
            if len(waits) == 1:
                self.cells[WAITING_INDEX_CELL] = index + 1
                self.cells[WAITING_SINCE_CELL] = now
            else:
                self.publish_waits()
            self.cells[LAST_EVENT_CELL] = now
        except Exception as error:
            self.stop(error)
        return now

    def end_wait(self, since: int) -> None:
        """End the wait that `begin_wait` returned this for."""
        ident = get_ident()
        if not since or not self.waits.pop(ident, None) or not self.recording:
            return
        try:
            self.cells[WAITING_SINCE_CELL] = 0
            if self.waits:
                self.publish_waits()
            self.cells[LAST_EVENT_CELL] = now = monotonic_ns()
            if ident == self.main_thread:
                self.cells[BLOCKED_CELL] += now - since
        except Exception as error:
            self.stop(error)

    def publish_waits(self) -> None:
        """Put the oldest wait into the header. Whoever wrote what another thread has changed meanwhile writes again."""
        while True:
            waits = sorted(self.waits.values())
            since, number = waits[0] if waits else (0, 0)
            self.cells[WAITING_INDEX_CELL] = number
            self.cells[WAITING_SINCE_CELL] = since
            if sorted(self.waits.values()) == waits:
                return

    def mark_step(self) -> None:
        """Note the end of a step. Runs after every step of every optimizer."""
        if not self.recording and not self.claim():
            return
        try:
            cells = self.cells
            steps = cells[STEPS_CELL]
            place = (MARKS_AT >> 3) + (steps % MARKS << 1)
            cells[place] = cells[LAST_EVENT_CELL] = monotonic_ns()
            cells[place + 1] = cells[BLOCKED_CELL]
            cells[STEPS_CELL] = steps + 1
        except Exception as error:
            self.stop(error)

    # What slots point to -------------------------------------------------------------------------------------------------

    def new_thread(self) -> int:
        """Number a thread that has not been seen."""
        number = min(len(self.threads), 0xFFFF)
        if number < 0xFFFF:
            self.threads[get_ident()] = number
        return number

    def site(self, frame: FrameType | None) -> int:
        """Return the index of the call site: the innermost frame of the user's program, else of a package above torch."""
        kinds, package = self.kinds, None
        for _ in range(FRAMES_WALKED):
            if frame is None:
                break
            code = frame.f_code
            known = kinds.get(id(code))
            kind = known[0] if known else self.kind(code)
            if kind == USER:
                return self.sites.get((id(code), frame.f_lasti)) or self.new_site(frame)
            if kind == PACKAGE and package is None:
                package = frame
            frame = frame.f_back
        return 0 if package is None else self.sites.get((id(package.f_code), package.f_lasti)) or self.new_site(package)

    def kind(self, code: CodeType) -> int:
        """Return whose code this is."""
        if len(self.kinds) >= CODES_KEPT:  # a program that makes code as it goes on
            self.kinds.clear()
            self.sites.clear()
        name = code.co_filename
        packages = "site-packages" in name or "dist-packages" in name
        ours = name.startswith(("<frozen", os.path.dirname(__file__) + os.sep))
        if ours or f"{os.sep}torch{os.sep}" in name or (name.startswith(self.library) and not packages):
            kind = MACHINERY
        else:
            kind = PACKAGE if packages else USER
        self.kinds[id(code)] = kind, code
        return kind

    def new_site(self, frame: FrameType) -> int:
        """Enter a call site into the table."""
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        index = self.entry("s", f"{code.co_filename}:{frame.f_lineno} {name}")
        self.sites[id(code), frame.f_lasti] = index
        return index

    def group(self, name: str, desc: str, ranks: Sequence[int]) -> Group:
        """Return the group of this name and these ranks, entered into the table."""
        key = name, tuple(ranks)
        known = self.groups.get(key)
        if known is None:
            known = self.groups[key] = Group(self.entry("g", name, desc, runs(key[1]), limit=0xFFFF), key[1])
        return known

    def world(self) -> Group:
        """Return the group of all ranks that is there before any group is."""
        return self.group(WORLD, "", range(min(self.cells[WORLD_CELL], 1 << 20)))

    def entry(self, kind: str, *fields: str, limit: int = 1 << 31) -> int:
        """Add a line to the table, and return its index; 0, unknown, if there is no room for it."""
        if not self.recording and not self.claim():
            return 0
        index, used = self.entries(), self.cells[TABLE_BYTES_CELL]
        line = "\t".join([kind, str(index), *(" ".join(field.split()) for field in fields)]) + "\n"
        content = line.encode("utf-8", errors="replace")
        if used + len(content) > TABLE_BYTES or index > limit:
            return 0
        self.octets[TABLE_AT + used : TABLE_AT + used + len(content)] = content
        self.cells[TABLE_BYTES_CELL] = used + len(content)
        return index


def runs(ranks: Sequence[int]) -> str:
    """Return ranks as `0-3,8,16-64/16`: 10,000 of them in a few bytes where they are evenly spaced, as groups are."""
    parts, start = [], 0
    while start < len(ranks):
        end = start + 1
        step = ranks[end] - ranks[start] if end < len(ranks) else 0
        while step > 0 and end + 1 < len(ranks) and ranks[end + 1] - ranks[end] == step:
            end += 1
        if step <= 0 or end - start < 2:
            parts.append(str(ranks[start]))
            start += 1
        else:
            parts.append(f"{ranks[start]}-{ranks[end]}" + (f"/{step}" if step > 1 else ""))
            start = end + 1
    return ",".join(parts)


class Links(dict[int, Any] if TYPE_CHECKING else dict):
    """Which calls a Work stands for, by its id. Those of works that nobody waits for are forgotten at last."""

    def put(self, work: object, index: Any) -> None:
        """Link a work to the number of its call, or to several."""
        if len(self) >= LINKS_KEPT:
            for key in list(islice(self, LINKS_KEPT // 4)):
                self.pop(key, None)
        self[id(work)] = index
