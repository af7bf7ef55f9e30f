"""Straggler detector: compares the own time of ranks, round by round, and says when one is persistently slow. The judging is pure
(`tracer.pace`); here rounds are gathered: one is complete when every node of the attempt has spoken. What NCCL completed comes
with them and is added up, for whoever asks for metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import Event, HangSuspected, Inquired
from robust_run.launcher.model.job import Paces
from robust_run.tracer.nccl.types import CommRate
from robust_run.tracer.types import Group, Scene, TraceVerdict

if TYPE_CHECKING:
    from robust_run.launcher.controller.comparing.degrading import Degrading
    from robust_run.launcher.controller.steps import StepBook
    from robust_run.tracer.flight.lag import Lags
    from robust_run.tracer.nccl.rates import Totals
    from robust_run.tracer.pace.rounds import Rounds
    from robust_run.tracer.pace.slowing import Slowing
    from robust_run.tracer.pace.types import CpuShort, NodePace
    from robust_run.tracer.types import RankClocks


class Pacing:
    """The rounds of one job."""

    def __init__(
        self,
        *,
        state: JobState,
        clock: Clock,
        ask: Callable[[Callable[[Scene], None]], bool],
        tell: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self._steps: StepBook | None = None
        self._nccl: Totals | None = None
        self._state = state
        self._clock = clock
        self._ask = ask
        self._tell = tell
        self._say = say
        self._harmless = Harmless("comparing how fast ranks are", say)
        self._heard: dict[str, NodePace] = {}
        self._short: dict[str, CpuShort] = {}
        self._slowing: Slowing | None = None
        self._degrading: Degrading | None = None
        self._rounds: Rounds | None = None
        self._lags: Lags | None = None
        self._lags_in = -1
        """Attempt whose counts are compared."""
        self._clocks: dict[str, tuple[RankClocks, ...]] = {}
        self._told: tuple[int, tuple[int, ...]] = (-1, ())
        self._learnt_in = -1
        """Attempt whose groups are known."""
        self._groups: Sequence[Group] = ()
        self._pairs: Collection[tuple[int, int]] = frozenset()

    def take(self, node: str, said: Paces) -> None:
        """Take in what a node says of its ranks in this round."""
        state = self._state
        if said.pace.attempt != state.attempt or not state.is_training or node not in state.unended:
            return
        if said.nccl:
            self._add(said.nccl)
        self.steps.take(name_of(state, node), said, self._clock.monotonic_s())
        self._heard[node] = _named(said.pace, name_of(state, node))
        if said.cpu is not None:
            self._short[name_of(state, node)] = said.cpu
        self.degrading.take(name_of(state, node), said)
        self._clocks[node] = said.clocks
        if all(each in self._heard for each in state.unended):
            heard, self._heard = [self._heard[each] for each in state.unended], {}
            self._harmless.run(lambda: self._judge(heard))
            self._harmless.run(lambda: self._watch_past(heard))
            self._harmless.run(lambda: self._watch_steps(heard))
            self._harmless.run(self._watch_counts)

    def _watch_steps(self, heard: list[NodePace]) -> None:
        """Say when steps take many times what they took, and when that is over. Nothing is done about it."""
        from robust_run.tracer.pace.slowing import Slowing

        short, self._short = self._short, {}
        self._slowing, line = (self._slowing or Slowing()).hear(heard, short)
        if line:
            self._say(line)

    @property
    def degrading(self) -> Degrading:
        """What compares the job with its own past."""
        if self._degrading is None:
            from robust_run.launcher.controller.comparing.degrading import Degrading

            self._degrading = Degrading(self._state)
        return self._degrading

    def _watch_past(self, heard: list[NodePace]) -> None:
        """Say when the job is slower than it was, by whom and what it costs, and when that is over."""
        attempt = self._state.attempt
        is_known = self._learnt_in == attempt
        verdict, line = self.degrading.hear(
            heard,
            self._short,
            stages=(self._groups, self._pairs) if is_known else None,
            now_s=self._clock.monotonic_s(),
        )
        if not is_known and self.degrading.wants_stages:
            self._ask(lambda scene: self._learn(scene, ()))
        if line:
            self._say(line)
        if verdict is None or (self._told[0] == attempt and set(verdict.ranks) & set(self._told[1])):
            return
        slow = verdict
        if slow.rule != "slower_group" or not self._ask(lambda scene: self._tell_group(slow, scene)):
            self._tell(Inquired(attempt=attempt, verdict=slow, at_unix_s=self._clock.unix_s()))

    def _tell_group(self, verdict: TraceVerdict, scene: Scene) -> None:
        """Tell of slow communication, with the group that it is of, where all ranks' calls show one."""
        found = [verdict]

        def look() -> None:
            from robust_run.tracer.degradation.groups import with_group

            found.append(with_group(verdict, [sight.trace for sight in scene.ranks if sight.trace is not None]))

        self._harmless.run(look)
        self._tell(Inquired(attempt=scene.attempt, verdict=found[-1], at_unix_s=self._clock.unix_s()))

    def _watch_counts(self) -> None:
        """Have all ranks looked at where one stays behind in a group whose other members go on."""
        clocks, self._clocks = self._clocks, {}
        state = self._state
        if self._lags_in != state.attempt:
            self._lags, self._lags_in = None, state.attempt
        if not any(clocks.values()):
            return
        from robust_run.tracer.flight.lag import Lags

        self._lags = self._lags or Lags()
        lag = self._lags.take(clock for said in clocks.values() for clock in said)
        if lag is not None:
            self._tell(HangSuspected(attempt=state.attempt, rank=lag.rank, waited_s=0.0, reason=lag.words))

    @property
    def steps(self) -> StepBook:
        """What nodes said of their steps, for whoever watches; imported when somebody said or asked something."""
        if self._steps is None:
            from robust_run.launcher.controller.steps import StepBook

            self._steps = StepBook()
        return self._steps

    def _add(self, rates: Sequence[CommRate]) -> None:
        from robust_run.tracer.nccl.rates import Totals

        self._nccl = self._nccl or Totals()
        self._nccl.add(rates)

    def nccl_rates(self) -> tuple[CommRate, ...]:
        """Return what NCCL completed since this controller began, by communicator."""
        return self._nccl.rows() if self._nccl is not None else ()

    def _judge(self, heard: list[NodePace]) -> None:
        from robust_run.tracer.pace.rounds import Rounds

        attempt = self._state.attempt
        if self._learnt_in != attempt:
            self._groups, self._pairs = (), frozenset()
        before = self._rounds if self._rounds is not None else Rounds()
        self._rounds = before.hear(heard, self._groups, self._pairs)
        if not self._rounds.results or not self._rounds.results[-1].suspects:
            return
        if self._learnt_in != attempt:  # who does the same work matters only now
            self._rounds = before
            self._ask(lambda scene: self._learn(scene, heard))
            return
        verdict = self._rounds.verdict()
        if verdict is not None and (attempt, verdict.ranks) != self._told:
            self._told = attempt, verdict.ranks  # it is found again in every round, and said once
            verdict = self.degrading.explained(verdict, self._rounds.results[-1], heard, self._short)
            self._tell(Inquired(attempt=attempt, verdict=verdict, at_unix_s=self._clock.unix_s()))

    def _learn(self, scene: Scene, heard: Sequence[NodePace]) -> None:
        if scene.attempt != self._state.attempt or not self._state.is_training:
            return
        from robust_run.tracer.pace.stages import layout_of

        self._learnt_in = scene.attempt
        self._groups, self._pairs = layout_of([sight.trace for sight in scene.ranks if sight.trace is not None])
        if heard:
            self._harmless.run(lambda: self._judge(list(heard)))


def _named(pace: NodePace, name: str) -> NodePace:
    ranks = tuple(msgspec.structs.replace(rank, node=name) for rank in pace.ranks)
    timed = tuple(msgspec.structs.replace(rank, node=name) for rank in pace.timed)
    return msgspec.structs.replace(pace, node=name, ranks=ranks, timed=timed)
