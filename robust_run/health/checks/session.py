"""Checks of several nodes, a round at a time, as a state machine: the caller carries the rounds out. Pure.

    session = Session(facts, wish, history)
    while (made := session.next_round()) is not None:
        session.take(made, results)          # of all nodes in it; who says nothing is taken to hang
    session.judgement()

A node that has shown itself bad takes no part in later rounds with others: it would spoil what they show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from robust_run.health.checks.groups import broken_members
from robust_run.health.checks.history import History, SlownessLimits
from robust_run.health.checks.judge import judge
from robust_run.health.checks.plan import ALONE, CheckPlan, CheckRound, Wish, plan, rounds_of
from robust_run.health.checks.types import CHECKS, CheckJudgement, CheckName, NodeFacts, Result


class Session:
    """One run of checks."""

    def __init__(
        self,
        facts: Sequence[NodeFacts],
        wish: Wish,
        history: History | None = None,
        limits: SlownessLimits | None = None,
    ) -> None:
        self.facts = tuple(facts)
        self.wish = wish
        self.plan: CheckPlan = plan(self.facts, wish)
        self.results: list[Result] = []
        self._history, self._limits = history or History(), limits or SlownessLimits()
        self._wanted = [check for check in CHECKS if any(each.check == check for each in self.plan.rounds)]
        self._queue: list[CheckRound] = []
        self._left_out: dict[str, CheckName] = {}
        self._gone: dict[str, str] = {}

    def next_round(self) -> CheckRound | None:
        """Return what to do next, None if all is done."""
        while self._queue or self._wanted:
            if not self._queue:
                check = self._wanted.pop(0)
                self._queue = list(rounds_of(check, self._fit(check)))
                continue
            made = self._without_bad(self._without_gone(self._queue.pop(0)))
            if made.groups:
                return made
        return None

    def to_come(self, made: CheckRound, name: str) -> tuple[CheckName, ...]:
        """Return the checks that are planned for a node after this round, one for each round."""
        rounds = [(each.check, each.number) for each in self.plan.rounds]
        at = rounds.index((made.check, made.number)) if (made.check, made.number) in rounds else len(rounds)
        return tuple(each.check for each in self.plan.rounds[at + 1 :] if any(name in group for group in each.groups))

    def leave(self, name: str, why: str) -> None:
        """Note that a node went, or was away, while it was asked: that it says nothing is no fault that a check found."""
        self._gone.setdefault(name, why)

    def take(self, made: CheckRound, results: Iterable[Result]) -> None:
        """Note what the nodes of a round answered."""
        groups = {name: group for group in made.groups for name in group}
        found = [_belonging(made, groups[result.node], result) for result in results if result.node in groups]
        answered = {result.node for result in found}
        for group in made.groups:
            found += [_silent(made, group, name, self.wish) for name in group if name not in answered]
        self.results += [each for each in found if self._counts(each)]

    def _counts(self, result: Result) -> bool:
        """Whether a result says something of its node: what fails where a node went does not."""
        members = result.group or (result.node,)
        return (
            bool(result.wrong)
            or not self._gone.keys() & set(members)
            or (not result.group and result.outcome == "done")
        )

    def judgement(self) -> CheckJudgement:
        """Return what all results so far say."""
        judged = judge(self.results, self.facts, self._history, self._limits)
        alone = tuple(
            f"{name} did not take part in {check} any more, nor in what followed, for it had failed"
            for name, check in self._left_out.items()
        )
        gone = tuple(f"{name} could not be checked to the end: {why}" for name, why in self._gone.items())
        return msgspec.structs.replace(
            judged,
            unchecked=(*judged.unchecked, *gone),
            notes=(*judged.notes, *alone),
            passed=tuple(name for name in judged.passed if name not in self._gone),
        )

    def _fit(self, check: CheckName) -> tuple[NodeFacts, ...]:
        if check in ALONE or check == "exchange":
            return self.facts
        bad = self._bad(check)
        return tuple(node for node in self.facts if node.name not in bad)

    def _without_gone(self, made: CheckRound) -> CheckRound:
        if not self._gone:
            return made
        least = 1 if made.check in ALONE or made.check == "exchange" else 2
        groups = (tuple(name for name in group if name not in self._gone) for group in made.groups)
        return msgspec.structs.replace(made, groups=tuple(group for group in groups if len(group) >= least))

    def _without_bad(self, made: CheckRound) -> CheckRound:
        """Return a round without nodes that have shown themselves bad since it was planned."""
        if made.number == 0 or made.check in ALONE:
            return made
        bad = self._bad(made.check)
        groups = (tuple(name for name in group if name not in bad) for group in made.groups)
        return msgspec.structs.replace(made, groups=tuple(group for group in groups if len(group) > 1))

    def _bad(self, check: CheckName) -> set[str]:
        judged = judge(self.results, self.facts, self._history, self._limits)
        bad = {each.node for each in judged.suspects if each.confidence == "high"}
        bad |= {
            each.node for each in self.results if each.outcome in ("hung", "crashed", "failed") and each.check in ALONE
        }
        bad |= {each.node for each in broken_members(self.results)}
        for name in bad:
            self._left_out.setdefault(name, check)
        return bad


def _belonging(made: CheckRound, group: tuple[str, ...], result: Result) -> Result:
    """Return a result as one of this round: that much is known here, and not taken from the node."""
    return msgspec.structs.replace(result, check=made.check, round=made.number, group=group if len(group) > 1 else ())


def _silent(made: CheckRound, group: tuple[str, ...], name: str, wish: Wish) -> Result:
    return Result(
        check=made.check,
        node=name,
        outcome="hung",
        problem=f"the node did not answer within {wish.limit_s:g} s",
        group=group if len(group) > 1 else (),
        round=made.number,
    )
