"""How far ranks are in their groups travels with the rounds of the agents; who stays behind has all ranks looked at."""

from __future__ import annotations

import pytest
from stories import several_nodes

from robust_run.clock import SystemClock
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.frames import HEADER_BYTES, decode_from_agent, encode
from robust_run.launcher.controller.comparing.pacing import Pacing
from robust_run.launcher.core.rebase import rebased_sights
from robust_run.launcher.model.events import Event, HangSuspected
from robust_run.launcher.model.job import Paces
from robust_run.tracer.flight.lag import ROUNDS
from robust_run.tracer.pace.types import NodePace
from robust_run.tracer.types import TOLD_GROUPS, GroupProgress, RankClocks


def progress(completed: int, name: str = "dp") -> GroupProgress:
    return GroupProgress(name, completed, completed, size=2, first=0, last=8)


def paces(*clocks: RankClocks, attempt: int = 0) -> Paces:
    return Paces(pace=NodePace(attempt, "", 10.0, 20.0, ()), clocks=clocks)


class Rounds:
    """Two nodes with a rank each in one group."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.state = several_nodes("a", "b").state
        self.pacing = Pacing(
            state=self.state, clock=SystemClock(), ask=lambda _: False, tell=self.told.append, say=lambda _: None
        )
        self.at_s = 0.0

    def round(self, first: int, second: int) -> None:
        self.at_s += 10.0
        attempt = self.state.attempt
        self.pacing.take("a", paces(RankClocks(0, self.at_s, (progress(first),)), attempt=attempt))
        self.pacing.take("b", paces(RankClocks(8, self.at_s, (progress(second),)), attempt=attempt))


def test_a_rank_that_stays_behind_on_another_node_has_all_looked_at() -> None:
    rounds = Rounds()
    for number in range(1, ROUNDS + 2):
        rounds.round(10 * number, 10)
    (told,) = rounds.told
    assert isinstance(told, HangSuspected)
    assert (told.rank, told.number, told.attempt) == (8, 0, rounds.state.attempt)
    assert "behind in group dp: it has completed #10" in told.reason


def test_where_all_train_or_none_says_anything_nobody_is_looked_at() -> None:
    rounds = Rounds()
    for number in range(20):
        rounds.round(10 * number, 10 * number)
    for _ in range(20):
        rounds.pacing.take("a", paces())
        rounds.pacing.take("b", paces())
    assert rounds.told == []


def test_counts_travel_and_keep_through_a_change_of_clock() -> None:
    said = paces(RankClocks(0, 7.0, (progress(3),)))
    assert decode_from_agent(encode(said)[HEADER_BYTES:]) == said
    moved = rebased_sights(said, 100.0)
    assert isinstance(moved, Paces)
    assert moved.clocks == (RankClocks(0, 107.0, (progress(3),)),)


@pytest.mark.parametrize("groups", [tuple(progress(1) for _ in range(TOLD_GROUPS + 1)), (progress(1, name="x" * 200),)])
def test_more_than_was_agreed_is_no_message(groups: tuple[GroupProgress, ...]) -> None:
    with pytest.raises(ProtocolError):
        decode_from_agent(encode(paces(RankClocks(0, 1.0, groups)))[HEADER_BYTES:])
