"""NCCL monitor of a node: which rank waits inside NCCL, how a stall comes about, and what has become slow.

All of it is cheap, for it goes on as long as training does: four reads of 112 bytes a second for each rank, and every ten
seconds a whole trace of a few of them (Mycroft's sampling, arXiv 2509.03018, section 4.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.model.events import HangSuspected, NodeEvent
from robust_run.tracer.nccl.types import NcclNote, NcclTrace
from robust_run.tracer.plugin.waiting import NOTE_S, Waiting

if TYPE_CHECKING:
    import asyncio

    from robust_run.tracer.nccl.sampling import SampleWindow, Trigger

#: Operations that are read of a sampled rank.
SAMPLED_OPS = 512
#: Other ranks are sampled after so many windows.
TURN_WINDOWS = 30
#: Looks that sampling asks for are at least so far apart, twice as far after each, and at most so far.
PAUSE_S, LONGEST_PAUSE_S = 60.0, 960.0
#: That nothing is completed in a window is unusual after so many windows, if it was so in less than this share of them.
FEWEST_WINDOWS, UNUSUAL = 3, 0.1


class _Sampled(msgspec.Struct):
    """A rank whose windows are looked at."""

    trigger: Trigger
    trace: NcclTrace | None = None
    """Of the window before."""
    read_at_s: float = 0.0
    windows: int = 0
    silent: int = 0
    """Windows in which nothing was completed of what was in flight."""

    def is_unusual(self) -> bool:
        """Tell whether it is news that nothing is completed: in a job of long steps it is not."""
        return self.windows >= FEWEST_WINDOWS and self.silent < UNUSUAL * self.windows


class NcclWatch:
    """NCCL in the ranks of one attempt on this node. `paths`: their files by rank, whether or not there is one (yet)."""

    def __init__(
        self,
        *,
        attempt: int,
        node: str,
        world_size: int,
        paths: Mapping[int, str],
        after_s: float,
        clock: Clock,
        report: Callable[[NodeEvent], None],
        harmless: Harmless,
    ) -> None:
        self._attempt, self._node, self._world_size = attempt, node, world_size
        self._paths = paths
        self._after_s = after_s
        self._clock = clock
        self._report = report
        self._harmless = harmless
        self._ranks = {rank: Waiting(path) for rank, path in paths.items()}
        self._sampled: dict[int, _Sampled] = {}
        self._windows = 0
        self._quiet_until_s = 0.0
        self._pause_s = PAUSE_S
        self._loop: asyncio.AbstractEventLoop | None = None
        self._window: asyncio.TimerHandle | None = None
        self._noting: asyncio.TimerHandle | None = None
        self._goes_on = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from now on."""
        from robust_run.tracer.nccl.sampling import WINDOW_S

        self._loop = loop
        self._window = loop.call_later(WINDOW_S, self._each_window, WINDOW_S)

    def stop(self) -> None:
        """Look no more."""
        for timer in (self._window, self._noting):
            if timer is not None:
                timer.cancel()
        self._window = self._noting = self._loop = None
        for rank in self._ranks.values():
            rank.close()

    # --- waits

    def look(self, rank: int, now_s: float) -> tuple[int, float | None]:
        """Return a number that changes whenever NCCL does anything in a rank (0: not traced), and since when it waits."""
        waiting = self._ranks[rank]
        since_s = waiting.look(now_s)
        if since_s is not None and self._noting is None and self._loop is not None:
            self._noting = self._loop.call_later(NOTE_S, self._note)
        return waiting.event_ns, since_s

    def _note(self) -> None:
        self._noting = None
        if self._loop is not None and self._harmless.run(self._note_now) and self._goes_on:
            self._noting = self._loop.call_later(NOTE_S, self._note)

    def _note_now(self) -> None:
        now_s = self._clock.monotonic_s()
        self._goes_on = sum([rank.note(now_s) for rank in self._ranks.values()]) > 0

    def notes(self, rank: int) -> tuple[NcclNote, ...]:
        """Return how the counters of a rank changed while it began to wait."""
        return self._ranks[rank].notes

    # --- sampling

    def _each_window(self, length_s: float) -> None:
        if self._loop is not None and self._harmless.run(self.sample):
            self._window = self._loop.call_later(length_s, self._each_window, length_s)

    def sample(self) -> None:
        """Take in a window of the sampled ranks; ask for a look at all where one calls for it."""
        from robust_run.tracer.nccl.sampling import Trigger, sampled_ranks, window
        from robust_run.tracer.plugin import reader

        traced = {rank: path for rank, path in self._paths.items() if self._ranks[rank].event_ns}
        of_job = sampled_ranks(self._world_size, len(self._paths), self._windows // TURN_WINDOWS)
        chosen = [rank for rank in of_job if rank in traced]
        self._windows += 1
        now_s = self._clock.monotonic_s()
        reasons: list[tuple[int, str]] = []
        for rank in chosen:
            known = self._sampled.setdefault(rank, _Sampled(Trigger()))
            before, known.trace = known.trace, reader.read(traced[rank], SAMPLED_OPS, with_flows=False)
            length_s, known.read_at_s = now_s - known.read_at_s, now_s
            if before is not None and known.trace is not None:
                seen = window(before, known.trace, length_s)
                seen = msgspec.structs.replace(seen, in_flight=reader.in_flight(traced[rank]))
                reason = self._judge(known, seen)
                reasons += [(rank, reason)] if reason else []
        for rank in self._sampled.keys() - set(chosen):
            self._sampled[rank].trace = None
        self._ask(reasons, now_s)

    def _judge(self, known: _Sampled, seen: SampleWindow) -> str:
        reason = known.trigger.look(seen)
        is_silent = seen.in_flight and not seen.completed
        wanted = reason if not is_silent or known.is_unusual() else ""
        known.windows += 1
        known.silent += is_silent
        return wanted

    def _ask(self, reasons: list[tuple[int, str]], now_s: float) -> None:
        """Ask for a look at all ranks, but not again and again."""
        if not reasons or now_s < self._quiet_until_s:
            return
        self._quiet_until_s = now_s + self._pause_s
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        rank, reason = reasons[0]
        self._report(
            HangSuspected(
                attempt=self._attempt, node=self._node, rank=rank, waited_s=0.0, after_s=self._after_s, reason=reason
            )
        )
