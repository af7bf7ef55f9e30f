"""Degradation of a job: hands to `tracer.degradation` what nodes and their sensors say, and puts what comes of it into words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.job import Paces
from robust_run.tracer.degradation.causes import seen_on
from robust_run.tracer.degradation.explain import explained
from robust_run.tracer.degradation.types import ROUNDS, Seen, Standing
from robust_run.tracer.degradation.watch import Facts, Watch
from robust_run.tracer.degradation.words import over, verdict_of
from robust_run.tracer.pace.stages import stages as stages_of
from robust_run.tracer.pace.types import CpuShort, NodePace, Reported, RoundResult
from robust_run.tracer.types import Group, TraceVerdict

Layout = tuple[Sequence[Group], Collection[tuple[int, int]]]
#: Of what a sensor says, so much is put into a sentence.
_MOST_WORDS = 160


class Degrading:
    """The past of one job, as long as one controller lives."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._watch = Watch()
        self._standing: dict[str, Standing] = {}
        self._reported: Reported | None = None
        self._seen: tuple[Seen, ...] = ()
        """In the newest round."""

    def take(self, node: str, said: Paces) -> None:
        """Note what a node says besides the times of its ranks."""
        self._standing[node] = Standing(since_step_s=said.since_step_s, waiting_s=said.waiting_s)
        if said.reported is not None:
            self._reported = said.reported

    @property
    def wants_stages(self) -> bool:
        """Whether it matters by now which ranks do the same work."""
        return self._watch.wants_stages

    def hear(
        self, heard: Sequence[NodePace], short: Mapping[str, CpuShort], *, stages: Layout | None, now_s: float
    ) -> tuple[TraceVerdict | None, str]:
        """Take in a round of all nodes; return what is to be told as an incident, and a line of what is over."""
        standing, self._standing = self._standing, {}
        self._seen = self.seen(short)
        facts = Facts(
            seen=self._seen,
            stages=stages_of([p.rank for node in heard for p in node.ranks], *stages) if stages is not None else (),
            standing=standing,
            reported=self._reported,
            now_s=now_s,
        )
        self._watch, found, ended = self._watch.hear(heard, facts)
        line = over(ended, self._watch.fresh[-1].step_ms, now_s) if ended is not None and self._watch.fresh else ""
        if found is None:
            return None, line
        lengths_s = [node.ended_s - node.began_s for node in heard]
        return verdict_of(found, rounds=ROUNDS, round_s=max(lengths_s, default=0.0)), line

    def seen(self, short: Mapping[str, CpuShort]) -> tuple[Seen, ...]:
        """Return what may be why ranks are slow: what sensors have said and not taken back."""
        active = self._state.health.active.values()
        signs = ((sign.name, sign.event.name, sign.event.detail[:_MOST_WORDS]) for sign in active)
        return seen_on(short, signs)

    def explained(
        self, verdict: TraceVerdict, newest: RoundResult, heard: Sequence[NodePace], short: Mapping[str, CpuShort]
    ) -> TraceVerdict:
        """Return a verdict on ranks that are slower than their peers with why, what it costs, and what to do."""
        return explained(verdict, newest, heard, self.seen(short) or self._seen)
