"""What ranks of this node do inside NCCL, window by window: those that the job samples, and all while something is suspicious.

A reading takes 5 us for each connection of a rank. Before a suspicion nobody knows which rank will be of interest, so a reading
of every rank is kept now and then: the plugin adds up from the start, so that one is enough to know a past.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.agent.nccl.nics import NicLook
from robust_run.launcher.model.nccl_windows import NcclWindow

if TYPE_CHECKING:
    import asyncio

    from robust_run.tracer.nccl.accounts import Accounts
    from robust_run.tracer.nccl.work import RankWork

#: A reading of all ranks is kept after so long, and then every so often.
FIRST_MARK_S, MARK_S = 60.0, 300.0
#: Other ranks are sampled after so many windows.
TURN_WINDOWS = 120
#: Ranks with more connections are left out: those of a node would hold up its agent for more than a tenth of a second.
MOST_FLOWS = 2048


class NcclWindows:
    """NCCL in the ranks of one attempt on this node. `paths`: their files by rank, whether or not there is one (yet)."""

    def __init__(
        self,
        *,
        attempt: int,
        world_size: int,
        paths: Mapping[int, str],
        clock: Clock,
        deliver: Callable[[NcclWindow], None],
        harmless: Harmless,
        nics: NicLook | None = None,
    ) -> None:
        self._attempt, self._world_size = attempt, world_size
        self._paths = paths
        self._clock = clock
        self._deliver = deliver
        self._harmless = harmless
        self._nics = nics or NicLook()
        self._begun_s = clock.monotonic_s()
        self._marked_s: float | None = None
        self._marks: tuple[dict[int, Accounts], ...] = ()
        self._before: dict[int, Accounts] = {}
        self._number = -1
        self._everybody_until = -1
        self._is_everybody = False
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from now on, at the same moments as all nodes."""
        self._loop = loop
        self._wait()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def everybody(self) -> None:
        """Look at all ranks for some windows: something is suspicious."""
        from robust_run.tracer.nccl.slowness import EVERYBODY

        now = self._now()
        if now > self._everybody_until:
            self._look_at_nics()
            self._before |= self._read(set(self._paths) - self._before.keys(), self._clock.monotonic_s())
        self._everybody_until = now + EVERYBODY

    def _look_at_nics(self) -> None:
        if any(self._marks):  # something is known of before
            self._nics.begin(suspicious=True)

    def _now(self) -> int:
        from robust_run.tracer.nccl.slowness import WINDOW_S

        return int(self._clock.unix_s() // WINDOW_S)

    def _wait(self) -> None:
        from robust_run.tracer.nccl.slowness import WINDOW_S

        assert self._loop is not None
        self._timer = self._loop.call_later(WINDOW_S - self._clock.unix_s() % WINDOW_S, self._each)

    def _each(self) -> None:
        if self._loop is not None and self._harmless.run(self.look):
            self._wait()

    def look(self) -> None:
        """Read the ranks that are to be looked at; tell what they did since the window before."""
        from robust_run.tracer.nccl.sampling import sampled_ranks

        now_s, number = self._clock.monotonic_s(), self._now()
        if number == self._number:
            return  # a timer that came early
        is_next, self._number = number == self._number + 1, number
        is_everybody, was_everybody = number <= self._everybody_until, self._is_everybody
        self._is_everybody = is_everybody
        if is_everybody:
            self._look_at_nics()
        elif was_everybody:
            self._nics.end()
        chosen = set(self._paths)
        if not is_everybody:
            chosen &= set(sampled_ranks(self._world_size, len(self._paths), number // TURN_WINDOWS))
        before, self._before = self._before, self._read(chosen, now_s)
        works = self._between(before) if is_next else ()
        past = self._between(self._marks[0]) if is_everybody and not was_everybody and self._marks else ()
        self._mark(now_s)
        nics = self._nics.news()
        if works or past or nics:
            told = NcclWindow(attempt=self._attempt, number=number, works=works, past=past, nics=nics)
            self._deliver(told)

    def _between(self, before: Mapping[int, Accounts]) -> tuple[RankWork, ...]:
        """Return what ranks did between readings of before and the newest ones."""
        from robust_run.tracer.nccl.accounts import work_between

        known = [(rank, now) for rank, now in self._before.items() if rank in before]
        found = [work_between(before[rank], now, rank=rank, node="") for rank, now in known]
        return tuple(work for work in found if work is not None)

    def _mark(self, now_s: float) -> None:
        """Keep a reading of all ranks, and the one before that."""
        since_s = self._begun_s + FIRST_MARK_S - MARK_S if self._marked_s is None else self._marked_s
        if now_s - since_s >= MARK_S:
            self._marked_s = now_s
            self._marks = (*self._marks, self._read(set(self._paths), now_s))[-2:]
            if self._marks[-1]:
                self._nics.begin(suspicious=False)

    def _read(self, ranks: set[int], now_s: float) -> dict[int, Accounts]:
        from robust_run.tracer.plugin import reader

        found = {rank: reader.accounts(self._paths[rank], now_s, MOST_FLOWS) for rank in sorted(ranks)}
        return {rank: accounts for rank, accounts in found.items() if accounts is not None and accounts.flows}
