"""Watches how fast a job is, round by round: against its own past, against an attempt before it, against the plan. Pure.

Every answer is a new value. What is slow stays out of the past, so that a job does not get used to it; what is told is told once,
again where it becomes worse by as much, and once more when it is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from robust_run.tracer.degradation.naming import Crew, Stages, imbalance, named
from robust_run.tracer.degradation.sampling import Taken, as_one, folded, sample_of
from robust_run.tracer.degradation.types import (
    AGAIN_S,
    DRIFT_BLOCKS,
    DRIFTED,
    LEAST_PAST,
    MOST_TOLD,
    OVER,
    PAST_BLOCKS,
    PLANNED,
    ROUNDS,
    ROUNDS_SLOW,
    SETTLE,
    SLOWER,
    SPREADS,
    STANDING_S,
    STANDING_STEPS,
    VAGUE_ROUNDS,
    Cost,
    Degradation,
    Sample,
    Seen,
    Standing,
)
from robust_run.tracer.pace.types import NodePace, Reported

#: Lengths of blocks that are remembered for a drift: half a day.
MOST_LENGTHS = 900
#: What may hardly let ranks run.
HOLD_UP = ("cpu_limit", "memory", "neighbour")
#: A step that takes so many times the usual, and so long, is told without waiting for three of them.
CRAWLS, CRAWLS_MS = 10.0, 1000.0
#: Deviations below this share of a step are taken for it: chance alone makes as much.
LEAST_SPREAD = 0.01


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known in a round besides the times of steps."""

    seen: tuple[Seen, ...] = ()
    """What may be why ranks are slow, now."""
    stages: Stages = ()
    """Ranks by pipeline stage; empty: not known."""
    standing: Mapping[str, Standing] = {}
    """By node."""
    reported: Reported | None = None
    now_s: float


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the newest attempt."""

    attempt: int = -1
    through: int = 0
    settled: int = 0
    """Rounds of the attempt that counted, as far as that matters."""
    crew: Crew = Crew((), ())
    fresh: tuple[Sample, ...] = ()
    """The newest rounds, oldest first."""
    lengths_ms: tuple[float, ...] = ()
    """Steps of the rounds of the past, the newest ones: what they vary by."""
    pending: tuple[Sample, ...] = ()
    blocks: tuple[Sample, ...] = ()
    """The past before `fresh`, in blocks."""
    early: Sample | None = None
    """The first blocks as one: what a drift is seen against."""
    course_ms: tuple[float, ...] = ()
    """Steps of all blocks since then."""
    before: Sample | None = None
    """The past of an attempt before this one with as many ranks."""
    told: Degradation | None = None
    """What is told and not over."""
    told_as: Sample | None = None
    """The rounds that it was told for."""
    told_keys: frozenset[tuple[str, tuple[int, ...]]] = frozenset()
    """What is told once in an attempt."""
    times: int = 0
    stood: int = 0
    """Rounds in a row without a step."""
    slow_rounds: int = 0
    """Rounds in a row that were slower than usual, of which nothing was told."""
    told_at: Mapping[str, float] = {}
    """What was told when, by kind, ranks and cause."""
    is_quiet: bool = False
    """`told` was told before, so it is not told again, nor that it is over."""

    # --- questions

    @property
    def wants_stages(self) -> bool:
        """Whether it matters by now which ranks do the same work."""
        if len(self.fresh) < ROUNDS:
            return False
        own_ms = sorted(self.fresh[-1].own_ms)
        return self._is_slower(self._past()) or own_ms[-1] >= SLOWER * own_ms[(len(own_ms) - 1) // 2]

    def _past(self) -> Sample | None:
        """Return what is usual; None: not known yet."""
        known = (*self.blocks, *self.pending)
        return as_one(known) if len(self.lengths_ms) >= LEAST_PAST and known else None

    def _is_slower(self, past: Sample | None) -> bool:
        """Whether the newest rounds are slower than usual."""
        if past is None or len(self.fresh) < ROUNDS:
            return False
        limit_ms = max(SLOWER * past.step_ms, past.step_ms + SPREADS * _spread(self.lengths_ms, past.step_ms))
        slow = [one.step_ms >= limit_ms for one in self.fresh]
        return slow[-1] and sum(slow) >= ROUNDS_SLOW

    # --- a round

    def hear(self, nodes: Sequence[NodePace], facts: Facts) -> tuple[Watch, Degradation | None, Degradation | None]:
        """Take in what nodes said in a round; return what is to be told, and what of what was told is over."""
        attempt = max((node.attempt for node in nodes), default=self.attempt)
        known = self if attempt == self.attempt else self._begun(attempt)
        taken = sample_of([node for node in nodes if node.attempt == attempt], known.through, facts.now_s)
        few = taken if taken is not None else sample_of(nodes, known.through, facts.now_s, least=1)
        if few is not None and (found := known._crawling(few, facts)) is not None:
            return known._crawl(few, found, facts, is_whole=taken is not None)
        if taken is None:
            return known._stand(nodes, facts)
        known = msgspec.structs.replace(
            known, through=taken.through, stood=0, settled=min(known.settled + 1, SETTLE + 1)
        )
        if known.settled <= SETTLE:
            return known, None, None
        if taken.crew != known.crew:
            known = msgspec.structs.replace(
                known,
                crew=taken.crew,
                fresh=(),
                pending=(),
                blocks=(),
                lengths_ms=(),
                early=None,
                course_ms=(),
                told=None,
            )
        return known._heard(taken, facts)

    def _begun(self, attempt: int) -> Watch:
        """Return the watch of a new attempt: what was usual before it is remembered."""
        past = self._past()
        return Watch(attempt=attempt, before=past if past is not None else self.before)

    def _heard(self, taken: Taken, facts: Facts) -> tuple[Watch, Degradation | None, Degradation | None]:
        oldest = self.fresh[0] if len(self.fresh) == ROUNDS else None
        known = msgspec.structs.replace(self, fresh=(*self.fresh, taken.sample)[-ROUNDS:])
        if known.told is not None:
            return known._going_on(facts)
        if oldest is not None and not known._doubts(oldest):
            known = known._remember(oldest)
        return known._judged(facts)

    def _doubts(self, oldest: Sample) -> bool:
        """Whether a sample may be of a slowness that begins: then it is no part of what is usual yet."""
        past = self._past()
        if past is None:
            return False
        limit_ms = max(SLOWER * past.step_ms, past.step_ms + SPREADS * _spread(self.lengths_ms, past.step_ms))
        return oldest.step_ms >= limit_ms and sum(one.step_ms >= limit_ms for one in self.fresh) >= ROUNDS - 2

    def _remember(self, sample: Sample) -> Watch:
        pending, block = folded(self.pending, sample)
        blocks = self.blocks if block is None else (*self.blocks, block)[-PAST_BLOCKS:]
        early, course = self.early, self.course_ms
        if block is not None:
            course = (*course, block.step_ms)[-MOST_LENGTHS:]
            if early is None and len(blocks) == PAST_BLOCKS:
                early = as_one(blocks)
        return msgspec.structs.replace(
            self,
            pending=pending,
            blocks=blocks,
            early=early,
            course_ms=course,
            lengths_ms=(*self.lengths_ms, sample.step_ms)[-ROUNDS * PAST_BLOCKS :],
        )

    def _judged(self, facts: Facts) -> tuple[Watch, Degradation | None, Degradation | None]:
        past = self._past()
        now = as_one(self.fresh)
        since_s = self.fresh[0].at_s
        if self.times >= MOST_TOLD:
            return self, None, None
        if past is not None and self._is_slower(past):
            slow_since_s = next((one.at_s for one in self.fresh if one.step_ms >= SLOWER * past.step_ms), since_s)
            known = msgspec.structs.replace(self, slow_rounds=self.slow_rounds + 1)
            found = named(self.crew, past, now, facts.stages, facts.seen, since_s=slow_since_s)
            if is_vague(found) and known.slow_rounds + ROUNDS - 1 < VAGUE_ROUNDS:
                return known, None, None
            return known._tells(found, facts.now_s)
        if self.slow_rounds:
            return msgspec.structs.replace(self, slow_rounds=0)._judged(facts)
        if self.early is not None and "drift" not in self.told_at and self._has_drifted(now):
            lately = as_one((*self.blocks[-2:], now))
            found = named(self.crew, self.early, lately, facts.stages, facts.seen, since_s=self.early.at_s)
            known = msgspec.structs.replace(self, told_at={**self.told_at, "drift": facts.now_s})
            return known._tells(msgspec.structs.replace(found, is_drift=True), facts.now_s)
        return self._once(now, facts, since_s)

    def _once(self, now: Sample, facts: Facts, since_s: float) -> tuple[Watch, Degradation | None, Degradation | None]:
        """Look for what is told once in an attempt, since it has been so from its beginning."""
        if len(self.fresh) < ROUNDS:
            return self, None, None
        found = imbalance(self.crew, self.fresh, facts.stages, since_s=since_s)
        if found is None or ("stage", found.ranks) in self.told_keys:
            found = self._slower_than_before(now, facts, since_s) or self._below_plan(now, facts, since_s)
        if found is None or (found.kind, found.ranks) in self.told_keys:
            return self, None, None
        keys = self.told_keys | {(found.kind, found.ranks)}
        return msgspec.structs.replace(self, told_keys=keys, times=self.times + 1), found, None

    def _slower_than_before(self, now: Sample, facts: Facts, since_s: float) -> Degradation | None:
        """Whether the attempt is slower than the one before it from its beginning."""
        before = self.before
        if before is None or len(before.own_ms) != len(self.crew.ranks) or self._past() is not None:
            return None
        if any(one.step_ms < SLOWER * before.step_ms for one in self.fresh):
            return None
        return named(self.crew, before, now, facts.stages, facts.seen, since_s=since_s)

    def _below_plan(self, now: Sample, facts: Facts, since_s: float) -> Degradation | None:
        """Whether steps take longer than was planned, all the time."""
        planned_ms = planned_step_ms(facts.reported, now.step_ms)
        if planned_ms is None or any(one.step_ms < PLANNED * planned_ms for one in self.fresh):
            return None
        cost = Cost(now.step_ms, planned_ms, len(self.crew.ranks), self.crew.on_gpus)
        return Degradation(kind="plan", cost=cost, since_s=since_s)

    def _has_drifted(self, now: Sample) -> bool:
        """Whether steps have become longer little by little, over all of the attempt, and were nearly so in the last minutes."""
        if self.early is None or len(self.course_ms) < DRIFT_BLOCKS or now.step_ms < DRIFTED * self.early.step_ms:
            return False
        if any(
            block.step_ms - self.early.step_ms < 0.7 * (DRIFTED - 1.0) * self.early.step_ms for block in self.blocks
        ):
            return False
        third = len(self.course_ms) // 3
        parts = [_median(self.course_ms[at : at + third]) for at in (0, third, 2 * third)]
        least_ms = (now.step_ms - parts[0]) / 8
        return parts[1] - parts[0] >= least_ms and parts[2] - parts[1] >= least_ms

    def _tells(self, found: Degradation, now_s: float) -> tuple[Watch, Degradation | None, Degradation | None]:
        key = f"{found.kind} {found.ranks} {found.cause}"
        is_quiet = now_s - self.told_at.get(key, float("-inf")) < AGAIN_S
        known = msgspec.structs.replace(
            self, told=found, told_as=as_one(self.fresh) if self.fresh else None, is_quiet=is_quiet, slow_rounds=0
        )
        if is_quiet:
            return known, None, None
        told_at = {**self.told_at, key: now_s}
        return msgspec.structs.replace(known, told_at=told_at, times=self.times + 1), found, None

    def _going_on(self, facts: Facts) -> tuple[Watch, Degradation | None, Degradation | None]:
        """Something was told: look whether it is over, or has become worse by as much again."""
        assert self.told is not None
        told = self.told
        newest = [one.step_ms for one in self.fresh]
        usual_ms = told.cost.usual_ms
        if _median(newest) < OVER * usual_ms:
            # What was slow is left out: the past is that from before.
            known = msgspec.structs.replace(self, told=None, is_quiet=False, fresh=self.fresh[-1:])
            return known, None, None if self.is_quiet else told
        before = self.told_as
        if before is None or min(newest) < SLOWER * told.cost.step_ms or self.times >= MOST_TOLD:
            return self, None, None
        found = named(self.crew, before, as_one(self.fresh), facts.stages, facts.seen, since_s=self.fresh[0].at_s)
        cost = msgspec.structs.replace(found.cost, usual_ms=usual_ms)
        return self._tells(msgspec.structs.replace(found, cost=cost), facts.now_s)

    def _crawling(self, few: Taken, facts: Facts) -> Degradation | None:
        """Return who is hardly let run, by a step or two that took many times the usual; None: nobody, or no sensor says so."""
        past = self._past()
        if past is None or few.crew != self.crew or self.told is not None or self.times >= MOST_TOLD:
            return None
        if few.sample.step_ms < max(CRAWLS * past.step_ms, CRAWLS_MS):
            return None
        found = named(self.crew, past, few.sample, facts.stages, facts.seen, since_s=facts.now_s)
        return found if found.kind in ("rank", "node") and found.cause in HOLD_UP else None

    def _crawl(
        self, few: Taken, found: Degradation, facts: Facts, *, is_whole: bool
    ) -> tuple[Watch, Degradation | None, Degradation | None]:
        """Name who is hardly let run in the second round of it. `is_whole`: there are steps enough for a round."""
        known = msgspec.structs.replace(self, stood=self.stood + 1)
        told: Degradation | None = None
        if known.stood >= 2:
            known, told, _ = known._tells(found, facts.now_s)
            known = msgspec.structs.replace(known, told_as=few.sample, fresh=(), stood=0)
        if is_whole:
            known = msgspec.structs.replace(known, through=few.through)
        return known, told, None

    def _stand(self, nodes: Sequence[NodePace], facts: Facts) -> tuple[Watch, Degradation | None, Degradation | None]:
        """No step was made in the round: name the nodes whose ranks do not wait, where a sensor says why they are so slow."""
        past = self._past()
        long_s = max(STANDING_S, STANDING_STEPS * (past.step_ms if past is not None else 0.0) / 1e3)
        waits = {name: one.waiting_s for name, one in facts.standing.items()}
        stood_s = max((waited_s for waited_s in waits.values() if waited_s is not None), default=0.0)
        if stood_s < long_s:
            return self, None, None
        known = msgspec.structs.replace(self, stood=self.stood + 1)
        busy = {name for name, waited_s in waits.items() if waited_s is None or waited_s < 0.5 * stood_s}
        all_wait = not busy  # also where who is held back has come, and a thread of its communication is not let run
        why = tuple(one for one in facts.seen if one.node in (busy or set(waits)) and one.cause in HOLD_UP)
        names = tuple(sorted({one.node for one in why}))
        if not names or (len(waits) > 1 and 2 * len(names) > len(waits)) or known.stood < 2 or known.told is not None:
            return known, None, None
        ranks = tuple(sorted(pace.rank for node in nodes for pace in node.ranks if pace.node in names))
        size = max(len(known.crew.ranks), sum(len(node.ranks) for node in nodes), 1)
        usual_ms = past.step_ms if past is not None else 0.0
        found = Degradation(
            kind="node",
            ranks=ranks,
            nodes=names,
            cause=why[0].cause,
            seen=why,
            cost=Cost(1e3 * stood_s, usual_ms, size, known.crew.on_gpus),
            since_s=facts.now_s - stood_s,
            is_standing=True,
            is_blind=all_wait,
        )
        if ("held", ranks) in known.told_keys or known.times >= MOST_TOLD:
            return known, None, None
        keys = known.told_keys | {("held", ranks)}
        return msgspec.structs.replace(known, told_keys=keys, times=known.times + 1), found, None


def is_vague(found: Degradation) -> bool:
    """Whether it may be what comes and goes: of communication that no sensor blames on a node, or ranks without a cause.

    Single ranks that need much longer than their peers are not.
    """
    if found.kind == "group":
        return not found.nodes
    return found.kind in ("rank", "all") and not found.cause and not found.far_from_peers


def planned_step_ms(reported: Reported | None, step_ms: float) -> float | None:
    """Return how long a step should take as planned; None: nothing was."""
    if reported is None:
        return None
    planned_s, planned, have = reported.planned_step_s, reported.planned_tokens_per_s, reported.tokens_per_s
    if planned_s is not None:
        planned_ms = 1e3 * planned_s
    elif planned is not None and have is not None and planned > 0:
        planned_ms = step_ms * have / planned
    else:
        return None
    return planned_ms if math.isfinite(planned_ms) and planned_ms > 0 else None


def _spread(values: Sequence[float], usual: float) -> float:
    """Return the deviation of what is usual, by its median."""
    apart = _median([abs(value - usual) for value in values]) if values else 0.0
    return max(1.4826 * apart, LEAST_SPREAD * usual)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]
