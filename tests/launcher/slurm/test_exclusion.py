"""Which nodes a requeued job is kept from: evicted ones and dead ones, never those whose agent alone died."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from robust_run.slurm.exclusion import ExclusionCandidates, chosen, excluded_before, most_excluded
from robust_run.slurm.node_state import is_dead, is_down, slurmd_at


def is_dead_of(*names: str) -> Callable[[str], bool]:
    return lambda name: name in names


def test_a_node_whose_agent_died_is_not_left_out_and_a_dead_one_is() -> None:
    candidates = ExclusionCandidates(lost=("rr1", "rr2", "rr3"), most=3)
    assert chosen(candidates, is_dead_of("rr2")) == ("rr2",)
    assert chosen(candidates, is_dead_of()) == ()


def test_evicted_nodes_are_left_out_whatever_they_are_like() -> None:
    assert chosen(ExclusionCandidates(evicted=("rr1", "rr2"), most=1), is_dead_of()) == ("rr1", "rr2")


def test_no_more_nodes_are_ever_left_out_than_a_share() -> None:
    lost = ExclusionCandidates(lost=("rr1", "rr2", "rr3"), most=2)
    everything_dead = is_dead_of("rr1", "rr2", "rr3")
    assert chosen(lost, everything_dead) == ("rr1", "rr2")
    again = ExclusionCandidates(lost=("rr3",), before=frozenset({"rr1"}), most=2)
    assert chosen(again, everything_dead) == ("rr3",)
    at_last = ExclusionCandidates(lost=("rr3",), before=frozenset({"rr1", "rr2"}), most=2)
    assert chosen(at_last, everything_dead) == ()
    beside = ExclusionCandidates(evicted=("rr9", "rr8"), lost=("rr3",), most=2)
    assert chosen(beside, everything_dead) == ("rr9", "rr8")


def test_a_node_that_slurm_called_down_is_not_asked_for_again() -> None:
    assert chosen(ExclusionCandidates(known_dead=("rr1",), lost=("rr1",)), is_dead_of()) == ("rr1",)


def test_looking_for_dead_nodes_takes_no_longer_than_slurm_waits() -> None:
    times = iter(range(0, 100, 4))
    candidates = ExclusionCandidates(lost=tuple(f"rr{number}" for number in range(9)), most=9)
    assert chosen(candidates, lambda _: True, lambda: float(next(times))) == ("rr0", "rr1")


@pytest.mark.parametrize(("share", "nodes", "most"), [(0.1, 4, 1), (0.1, 100, 10), (0.0, 100, 0), (1.0, 8, 8)])
def test_a_share_of_the_nodes(share: float, nodes: int, most: int) -> None:
    assert most_excluded(share, nodes) == most


def test_what_the_user_left_out_does_not_count() -> None:
    assert excluded_before("rr[1-3],login", ["rr2", "rr4"]) == {"rr2"}
    assert excluded_before("", ["rr2"]) == frozenset()
    assert excluded_before("rr[1-", ["rr2"]) == frozenset()


@pytest.mark.parametrize("state", ["DOWN", "DOWN*+DRAIN", "IDLE*", "FAIL", "MIXED+NOT_RESPONDING", "POWERED_DOWN"])
def test_states_of_nodes_that_are_no_good(state: str) -> None:
    assert is_down({"State": state})


@pytest.mark.parametrize("state", ["ALLOCATED", "MIXED", "IDLE+COMPLETING", "ALLOCATED+DRAIN", ""])
def test_states_of_nodes_that_live(state: str) -> None:
    assert not is_down({"State": state})


def test_where_slurmd_listens() -> None:
    assert slurmd_at({"NodeAddr": "10.0.0.7", "Port": "7000"}, "rr1") == ("10.0.0.7", 7000)
    assert slurmd_at({"Port": "9" * 99}, "rr1") == ("rr1", 6818)


def test_of_a_node_that_nobody_can_be_asked_about_nothing_is_said() -> None:
    assert not is_dead("rr1", {"PATH": "/nowhere"}, lambda _host, _port: False)
