"""Reduced values of ranks of several nodes, as the controller compares them, and what it tells the core."""

from __future__ import annotations

from typing import Any

import pytest
from stories import Story, several_nodes

from robust_run.clock import SystemClock
from robust_run.launcher.controller.comparing.reduced_values import MOST_TOLD, ReducedComparison
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.reduced_values import ReducedValues
from robust_run.tracer.reduced.types import ReducedValue


class Ground:
    """A job of three nodes that trains, with a rank of each in one group."""

    def __init__(self) -> None:
        self.story: Story = several_nodes("a", "b", "c")
        self.told: list[HealthSeen] = []
        self.said: list[str] = []
        self.comparison = ReducedComparison(self.story.state, SystemClock(), self.told.append, self.said.append)

    def reports(self, seq: int, attempt: int | None = None, **checksums: int) -> None:
        """Nodes report of one call."""
        for node, checksum in checksums.items():
            rank = self.story.place(node).first_rank
            value = ReducedValue(rank, 7, 3, seq, 1, 1000, 1, 0, 1000, 10 * seq, checksum)
            number = self.story.state.attempt if attempt is None else attempt
            self.comparison.take(node, ReducedValues(attempt=number, values=(value,)))

    def alike(self, times: int = 3) -> None:
        for seq in range(times):
            self.reports(seq, a=seq, b=seq, c=seq)
        assert not self.told


@pytest.fixture
def ground() -> Ground:
    ground = Ground()
    ground.alike()
    return ground


def test_the_node_of_the_rank_that_differs_is_told_once(ground: Ground) -> None:
    rank = ground.story.place("b").first_rank
    for seq in (5, 6):
        ground.reports(seq, a=1, b=2, c=1)
    (seen,) = ground.told
    assert (seen.node, seen.event.name, seen.event.subject) == ("b", "numbers.reduced", f"rank {rank}")
    assert (
        f"the value of all_reduce #5 (elements 0 to 999 of 1000, float32, after 50 steps) is not on rank {rank} (b)"
        in (seen.event.detail)
    )


def test_what_an_attempt_before_has_left_is_not_compared_with_this_one(ground: Ground) -> None:
    ground.reports(5, a=1, c=1)
    ground.reports(5, attempt=ground.story.state.attempt - 1, b=2)
    assert not ground.told


def test_after_a_restart_values_have_to_be_the_same_again_before_a_difference_counts(ground: Ground) -> None:
    ground.reports(5, a=1, c=1)
    ground.story.state.attempt += 1
    ground.reports(5, a=1, b=2, c=1)
    assert not ground.told
    for seq in range(6, 9):
        ground.reports(seq, a=1, b=1, c=1)
    ground.reports(9, a=1, b=2, c=1)
    assert [seen.node for seen in ground.told] == ["b"]


def test_a_node_speaks_only_of_its_own_ranks(ground: Ground) -> None:
    rank = ground.story.place("b").first_rank
    value = ReducedValue(rank, 7, 3, 5, 1, 1000, 1, 0, 1000, 0, 2)
    ground.reports(5, a=1, c=1)
    ground.comparison.take("a", ReducedValues(attempt=ground.story.state.attempt, values=(value,)))
    assert not ground.told


def test_what_is_said_does_not_flood_the_job(ground: Ground) -> None:
    numbers: dict[str, Any] = {}
    for seq in range(10, 200):
        odd = ("a", "b", "c")[seq % 3]
        numbers = {node: 2 if node == odd else 1 for node in ("a", "b", "c")}
        ground.reports(seq, **numbers)
    assert 3 == len(ground.told) <= MOST_TOLD and not ground.said
