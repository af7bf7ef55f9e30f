"""Writes the ring of this worker: what its communication calls did, and since when. Python's standard library only.

`sitecustomize` loads this file by its path when torch.distributed is imported, under a name that is in no path. The layout
of the file is that of `robust_run.tracer.files.ring_format`; a test keeps the two equal. Methods that run with every call take no
lock (a signal handler may communicate too) and allocate next to nothing; they cost some hundred nanoseconds each. Those of
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
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...


MAGIC = b"RBRING\n\0"
VERSION = 1
SLOTS, SLOT_BYTES, SLOTS_AT = 4096, 64, 4096
MARKS, MARKS_AT = 1024, 4096 + 4096 * 64
table = load("table")
TABLE_BYTES, TABLE_AT = table.TABLE_BYTES, table.TABLE_AT
FILE_BYTES = TABLE_AT + TABLE_BYTES
SLOTS_AT_CELL, SLOT_MASK, STATE_AT = SLOTS_AT >> 3, SLOTS - 1, 49
SLOT_FORMAT = "=QQQqIIiHHBBBBiQ"
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
    DOUBT_CELL,
    TABLE_GENERATION_CELL,
) = range(15)
FOREIGN, LIMITED, SURVIVED, REBORN, FORKED, SERVING = 1, 2, 4, 8, 16, 32  # bits of the doubt cell
UNARMED, ARMED, GIVEN_UP = range(3)
STATES = ("entered", "issued", "waiting", "done", "failed")
ENTERED, ISSUED, WAITING, DONE, FAILED = range(5)
OPS = tuple(
    " all_reduce broadcast all_gather reduce_scatter all_to_all reduce gather scatter barrier send recv recv_any"
    " init_process_group new_group destroy_process_group ddp_backward monitored_barrier".split(" ")
)
DTYPES = tuple(
    " float32 float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64 complex128 float8_e4m3fn float8_e5m2"
    " float8_e4m3fnuz float8_e5m2fnuz uint16 uint32 uint64 complex32 float8_e8m0fnu float4_e2m1fn_x2".split(" ")
)
WORLD = table.WORLD
LARGEST_WORLD = 1 << 20
LINKS_KEPT = 4096
UNKNOWN = -1  # number of a call that has no slot

pack_slot = struct.Struct(SLOT_FORMAT).pack_into


class Ring:
    """The mapped file. Once `stop` was called, or in a forked child, nothing is written any more."""

    def __init__(self, path: str, give_up: Callable[[Exception], None]) -> None:
        import mmap

        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < FILE_BYTES:
                raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
            try:  # from Python 3.13 on without keeping a descriptor that the program would find
                mapped = mmap.mmap(descriptor, FILE_BYTES, trackfd=False)  # type: ignore[call-arg, unused-ignore]
            except TypeError:
                mapped = mmap.mmap(descriptor, FILE_BYTES)
            self.octets = memoryview(mapped)
        finally:
            os.close(descriptor)
        self.cells = self.octets.cast("Q")
        if bytes(self.octets[:8]) != MAGIC or self.cells[VERSION_CELL] != VERSION:
            raise ValueError(f"{path} is not a ring of version {VERSION}")
        self.give_up = give_up
        self.rank, self.world_size = self.cells[RANK_CELL], self.cells[WORLD_CELL]  # as the launcher has them
        self.pid = os.getpid()
        self.main_thread = get_ident()
        self.recording = False  # begins with the first event
        self.stopped = self.is_forked = False
        self.next_index = count().__next__
        self.threads: dict[int, int] = {self.main_thread: 0}
        self.waits: dict[int, tuple[int, int]] = {}  # outermost wait of each thread: since when, number of the call + 1
        self.table = table.Table(self.octets, self.cells, lambda: self.recording or self.claim(), self.in_slots)
        self.site = self.table.site
        os.register_at_fork(after_in_child=self.fork)

    def leave(self) -> None:
        """Record nothing in this process."""
        self.recording, self.stopped = False, True

    def fork(self) -> None:
        """Leave the ring to the worker, whose child this process is."""
        self.leave()
        self.is_forked = True

    def speak_up(self) -> None:
        """Note that this process communicates although it does not record: its parent's calls are not all of the rank's."""
        if self.is_forked:
            self.is_forked = False
            self.cells[DOUBT_CELL] |= FORKED

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
            cells[DOUBT_CELL] = 0
            self.octets[SLOTS_AT:MARKS_AT] = bytes(MARKS_AT - SLOTS_AT)
        cells[PID_CELL] = self.pid
        cells[STATE_CELL] = ARMED
        cells[WAITING_SINCE_CELL] = 0
        self.recording = True
        return True

    # Calls -------------------------------------------------------------------------------------------------------------

    def enter(
        self, group: Any, op: int, numel: int, dtype: int, peer: int, seq: int, state: int = ENTERED, tag: int = 0
    ) -> int:
        """Take a slot for a call that begins now, and return its number; `UNKNOWN` if nothing is recorded."""
        if not self.recording and not self.claim():
            return UNKNOWN
        now = monotonic_ns()
        thread = self.threads.get(get_ident())
        if thread is None:
            thread = self.new_thread()
        index = self.next_index()
        # pack_into clears the slot and writes field after field, index + 1 last.
        pack_slot(
            self.octets, SLOTS_AT + (index & SLOT_MASK) * SLOT_BYTES, now, 0, 0, numel, seq & 0xFFFFFFFF,
            self.site(sys._getframe(2)), peer, group.index, thread, op, state, dtype, seq >> 32 & 0xFF, tag, index + 1,
        )  # fmt: skip
        cells = self.cells
        cells[HEAD_CELL] = index + 1
        cells[LAST_EVENT_CELL] = now
        return index

    def settle(self, linked: int | list[int], state: int, now: int) -> None:
        """Note the state of the call or the calls that a work stands for, where their slots are still their own."""
        cells = self.cells
        cells[LAST_EVENT_CELL] = now
        if state == FAILED:
            cells[DOUBT_CELL] |= SURVIVED
        if linked == UNKNOWN:
            return
        for index in linked if isinstance(linked, list) else (linked,):
            place = SLOTS_AT_CELL + ((index & SLOT_MASK) << 3)
            if index >= 0 and cells[place + 7] == index + 1:
                if state >= WAITING:
                    cells[place + (1 if state == WAITING else 2)] = now
                self.octets[(place << 3) + STATE_AT] = state

    def in_slots(self) -> set[int]:
        """Return the numbers of groups and call sites that slots have."""
        slots = struct.iter_unpack(SLOT_FORMAT, self.octets[SLOTS_AT:MARKS_AT])
        return {number for slot in slots for number in (slot[5], slot[7])}

    def doubt(self, why: int) -> None:
        """Note why the calls of this process prove nothing, from now on."""
        if self.recording or self.claim():
            self.cells[DOUBT_CELL] |= why

    def set_state(self, linked: int | list[int], state: int) -> None:
        """Note the state of calls, now."""
        if self.recording:
            try:
                self.settle(linked, state, monotonic_ns())
            except Exception as error:
                self.stop(error)

    def begin_wait(self, linked: int | list[int]) -> None:
        """Note that this thread now waits for calls. If it waits around that already, that wait stays the one that counts."""
        if not self.recording:
            return
        try:
            now, ident, waits = monotonic_ns(), get_ident(), self.waits
            number = linked + 1 if isinstance(linked, int) else linked[0] + 1
            if ident not in waits:
                waits[ident] = now, number
                if len(waits) == 1:
                    self.cells[WAITING_INDEX_CELL] = number
                    self.cells[WAITING_SINCE_CELL] = now
                else:
                    self.publish_waits()
            self.settle(linked, WAITING, now)
        except Exception as error:
            self.stop(error)

    def end_wait(self, linked: int | list[int], state: int) -> None:
        """End what `begin_wait` began; as well if an interrupt has kept that from beginning."""
        if not self.recording:
            return
        try:
            now, ident, waits = monotonic_ns(), get_ident(), self.waits
            number = linked + 1 if isinstance(linked, int) else linked[0] + 1
            wait = waits.get(ident)
            if wait is not None and wait[1] == number:
                del waits[ident]
                self.cells[WAITING_SINCE_CELL] = 0
                if waits:
                    self.publish_waits()
                if ident == self.main_thread:
                    self.cells[BLOCKED_CELL] += now - wait[0]
            self.settle(linked, state, now)
        except Exception as error:
            self.stop(error)

    def publish_waits(self) -> None:
        """Put the oldest wait into the header. A thread that wrote what another has changed meanwhile writes again."""
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

    def world(self) -> Any:
        """Return the group of all ranks that is there before any group is."""
        return self.table.group(WORLD, "", range(min(self.cells[WORLD_CELL], LARGEST_WORLD)))

    def new_thread(self) -> int:
        """Number a thread that has not been seen."""
        number = min(len(self.threads), 0xFFFF)
        if number < 0xFFFF:
            self.threads[get_ident()] = number
        return number


class WorkCalls(dict):  # type: ignore[type-arg]
    """Which calls a Work stands for, by its id. Those of works that are never waited for are forgotten at last."""

    def put(self, work: object, index: Any) -> None:
        """Link a work to the number of its call, or to several."""
        if len(self) >= LINKS_KEPT:
            for key in list(islice(self, LINKS_KEPT // 4)):
                self.pop(key, None)
        self[id(work)] = index
