"""Times what steps consist of: forward, backward, the rest, and waiting for peers. Python's standard library only.

`phases` loads this file by its path and says when what begins. A mark is an event that the GPU notes the time of when it comes
to it. Marks are read when the GPU has passed them, a few steps later: nothing here waits for the GPU, and nothing makes it
wait. A step is timed whole or not at all. If timing takes more than `MOST_SHARE` of the program's time, or the GPU is too far
behind, fewer steps are timed (one in 2, 4, ..., the same ones on all ranks); if that does not help, none.

The layout of the file is that of `robust_run.tracer.files.phases`; a test keeps the two equal.
"""

from __future__ import annotations

import os
from collections import deque
from time import monotonic_ns, perf_counter_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

MAGIC = b"RBPHASE\n"
VERSION = 1
RECORDS, RECORD_CELLS, RECORDS_AT_CELL = 1024, 8, 8
FILE_BYTES = 8 * (RECORDS_AT_CELL + RECORDS * RECORD_CELLS)
MAGIC_CELL, VERSION_CELL, PID_CELL, STATE_CELL, NEWEST_CELL, STRIDE_CELL, CLOCK_CELL = range(7)
UNARMED, ARMED, GIVEN_UP = range(3)
NO_CLOCK, EVENTS, HOST = range(3)

#: What begins or ends: a step ends, a backward pass begins, has computed all, ends, a wait begins, ends.
STEP, BACKWARD, COMPUTED, BACKWARD_END, WAIT, WAITED = range(6)

MOST_SHARE = 0.002
"""Of the program's time that timing may take."""
MOST_STRIDE = 64
MOST_EVENTS = 4096
MOST_MARKS = 2048
"""Of a step."""
MOST_PENDING = 8
"""Timed steps that the GPU has not come to the end of."""
READ_AT_ONCE = 2
"""Steps that are read at the end of one: reading them takes time, too."""
WINDOW = 16
"""Timed steps after which it is looked at what they cost."""
LONGEST_MARK_NS = 20_000
"""A mark that took longer has lost its CPU meanwhile, or made an event."""
MOST_LOST = 64
"""Timed steps in a row that came to nothing."""


class Step:
    """A step that is being made, or that the GPU has yet to come to the end of."""

    __slots__ = ("at_ns", "began", "cost_ns", "events", "hands_on", "is_sound", "kinds", "number")

    def __init__(self, number: int, began: Any) -> None:
        self.number = number
        self.began = began  # the mark at the end of the step before
        self.kinds: list[int] = []
        self.events: list[Any] = []
        self.is_sound, self.hands_on = True, False
        self.at_ns = self.cost_ns = 0


class Timer:
    """The marks of one process. Once `stop` was called nothing is marked or written any more."""

    def __init__(self, path: str, device: Any, say: Callable[[Exception], None], share: float = MOST_SHARE) -> None:
        """`device`: see `host_clock.HostClock`. Raises OSError or ValueError if the file is not as it should be."""
        self.cells = open_cells(path)
        self.device, self.say, self.share = device, say, share
        self.making: Step | None = None  # None: the step that is being made is not timed
        self.pending: deque[Step] = deque()
        self.free: list[Any] = []
        self.made = self.steps = self.lost = 0
        self.stride, self.mark_ns = 1, 2000.0
        self.costs_ns: list[int] = []
        self.window_from = 0, 0  # step and time at its beginning
        self.stopped = False
        self.cells[PID_CELL] = os.getpid()
        self.cells[CLOCK_CELL], self.cells[STRIDE_CELL] = device.code, 1
        self.cells[STATE_CELL] = ARMED
        os.register_at_fork(after_in_child=self.leave)

    def leave(self) -> None:
        """Time nothing in this process."""
        self.stopped, self.making = True, None

    def stop(self, reason: Exception) -> None:
        """Give up, and say why."""
        if self.stopped:
            return
        self.leave()
        self.pending.clear()
        self.free.clear()
        try:
            self.cells[STATE_CELL] = GIVEN_UP
        finally:
            self.say(reason)

    # Marks -------------------------------------------------------------------------------------------------------------

    def mark(self, kind: int, place: Any = None) -> None:
        """Note that something begins or ends, in the step that is being made. Costs a microsecond or two.

        `place`: where marks are made, if that was asked already.
        """
        step = self.making
        if step is None:
            return
        try:
            place = place or self.device.here()
            if place is None:  # another stream, or one that a graph is captured from
                step.is_sound = False
            elif len(step.kinds) >= MOST_MARKS:
                step.is_sound = False
                self.making = None
                self.pending.append(step)
            else:
                event = self.event()
                event.record(place)
                step.events.append(event)
                step.kinds.append(kind)
        except Exception as error:
            self.stop(error)

    def event(self) -> Any:
        """Return an event that is not in use."""
        if self.free:
            return self.free.pop()
        if self.made >= MOST_EVENTS:
            raise RuntimeError(f"more than {MOST_EVENTS} events are in use")
        self.made += 1
        return self.device.event()

    def spoil(self) -> None:
        """Leave out the step that is being made: what was marked of it makes no sense."""
        if self.making is not None:
            self.making.is_sound = False

    def end_step(self) -> None:
        """End the step that is being made, begin the next. Runs after every step of every optimizer."""
        self.steps += 1
        if self.stopped or (self.making is None and (self.steps + 1) % self.stride and not self.pending):
            return
        try:
            began_ns = perf_counter_ns()
            self.turn()
            for _ in range(READ_AT_ONCE):  # while a graph is captured, even a question would end that
                if not self.pending or self.device.is_capturing() or not self.read():
                    break
            if self.making is not None:
                self.making.cost_ns += perf_counter_ns() - began_ns
        except Exception as error:
            self.stop(error)

    def turn(self) -> None:
        """Mark the end of a step, which is the beginning of the next."""
        step, number = self.making, self.steps + 1
        self.making = None
        if step is not None:
            step.at_ns = monotonic_ns()
            step.cost_ns += int(self.mark_ns * len(step.kinds))
            self.weigh(step)
            if self.stopped:
                return
        is_next_timed = number % self.stride == 0 and len(self.pending) < MOST_PENDING
        self.device.move()
        began_ns, event = perf_counter_ns(), None
        place = self.device.here() if step is not None or is_next_timed else None
        if place is not None:
            event = self.event()
            event.record(place)
            self.mark_ns += (min(perf_counter_ns() - began_ns, LONGEST_MARK_NS) - self.mark_ns) / 16
        if step is not None:
            self.end(step, event, is_next_timed)
        if is_next_timed and event is not None:
            self.making = Step(number, event)

    def end(self, step: Step, event: Any, hands_on: bool) -> None:
        """Leave a step to be read. `hands_on`: the mark at its end also begins the next step, which gives it back."""
        step.hands_on = hands_on
        if event is None:
            step.is_sound = False
        else:
            step.events.append(event)
            step.kinds.append(STEP)
        self.pending.append(step)

    # What they say -----------------------------------------------------------------------------------------------------

    def read(self) -> bool:
        """Write down the oldest step if the GPU has come to its end; False if it has not."""
        step = self.pending[0]
        last = step.events[-1] if step.events else step.began
        if not last.query():
            return False
        self.pending.popleft()
        sums = None
        if step.is_sound:
            marks = [step.began, *step.events]
            sums = phases_of(step.kinds, lambda begin, end: marks[begin].elapsed_time(marks[end]))
        self.free.append(step.began)
        self.free += step.events[:-1] if step.hands_on else step.events
        self.lost = 0 if sums is not None else self.lost + 1
        if sums is not None:
            self.write(step, sums)
        elif self.lost >= MOST_LOST:
            self.stop(RuntimeError(f"of {MOST_LOST} steps none could be timed"))
        return True

    def write(self, step: Step, sums: Sequence[float]) -> None:
        """Put a step into the file."""
        cells, at = self.cells, RECORDS_AT_CELL + RECORD_CELLS * (step.number % RECORDS)
        cells[at + 7] = 0
        cells[at] = step.at_ns
        for place, length_ms in enumerate(sums, at + 1):
            cells[place] = int(max(length_ms, 0.0) * 1e6)
        cells[at + 7] = step.number + 1
        cells[NEWEST_CELL] = step.number

    def weigh(self, step: Step) -> None:
        """Look at what the newest timed steps have cost, and time more or fewer of those to come."""
        if not self.window_from[1]:
            self.window_from = step.number, step.at_ns
            return
        self.costs_ns.append(step.cost_ns)
        is_behind = len(self.pending) >= MOST_PENDING
        if len(self.costs_ns) < WINDOW and not is_behind:
            return
        cost_ns = sorted(self.costs_ns)[
            len(self.costs_ns) // 2
        ]  # where it lost its CPU meanwhile, that is no cost of ours
        steps, length_ns = step.number - self.window_from[0], step.at_ns - self.window_from[1]
        share = cost_ns / max(length_ns * self.stride / max(steps, 1), 1.0)
        self.costs_ns, self.window_from = [], (step.number, step.at_ns)
        if share > self.share or is_behind:
            self.change_stride(self.stride * 2)
            if self.stride > MOST_STRIDE:
                why = "the GPU is too far behind" if is_behind else f"it takes more than {self.share:.1%} of a step"
                self.stop(RuntimeError(why))
        elif self.stride > 1 and share < self.share / 8:
            self.change_stride(self.stride // 2)

    def change_stride(self, stride: int) -> None:
        """Time one in so many steps from now on."""
        self.stride = self.cells[STRIDE_CELL] = stride


def phases_of(kinds: Sequence[int], elapsed_ms: Callable[[int, int], float]) -> list[float] | None:
    """Return forward, waiting in it, backward, waiting in it, the rest, waiting in it; None if the marks make no sense.

    `kinds`: what each mark is but the one at the beginning of the step. `elapsed_ms`: from one mark to another, by their numbers,
    where that at the beginning is 0; asked as seldom as possible, since it takes time.
    """
    found = [0.0] * 6
    begin = waits_from = tail_from = 0
    waiting = 0.0
    was_backward = False
    for number, kind in enumerate(kinds, start=1):
        if kind in (WAIT, WAITED):
            if (waits_from > 0) == (kind == WAIT):
                return None
            if kind == WAITED and not tail_from:
                waiting += elapsed_ms(waits_from, number)
            waits_from = number if kind == WAIT else 0
            continue
        if waits_from:
            return None
        if kind == COMPUTED:
            tail_from = tail_from or number
            continue
        waiting += elapsed_ms(tail_from, number) if tail_from else 0.0
        place = 2 if kind == BACKWARD_END else 4 if kind == STEP and was_backward else 0
        found[place] += elapsed_ms(begin, number) - waiting
        found[place + 1] += waiting
        begin, tail_from, waiting = number, 0, 0.0
        was_backward |= kind == BACKWARD_END
    return found


def open_cells(path: str) -> memoryview[int]:
    """Map the phases file, and return its cells."""
    import mmap

    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size < FILE_BYTES:
            raise ValueError(f"{path} is shorter than {FILE_BYTES} bytes")
        try:  # from Python 3.13 on without keeping a descriptor that the program would find
            mapped = mmap.mmap(descriptor, FILE_BYTES, trackfd=False)  # type: ignore[call-arg, unused-ignore]
        except TypeError:
            mapped = mmap.mmap(descriptor, FILE_BYTES)
        octets = memoryview(mapped)
    finally:
        os.close(descriptor)
    cells = octets.cast("Q")
    if bytes(octets[:8]) != MAGIC or cells[VERSION_CELL] != VERSION:
        raise ValueError(f"{path} is not a phases file of version {VERSION}")
    return cells
