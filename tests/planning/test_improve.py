"""What to improve first: reckoned from what was lost, and right where the change is small."""

from __future__ import annotations

import msgspec
import pytest

from robust_run.planning.advising import planned
from robust_run.planning.improve import improvements
from robust_run.planning.mix import DEFAULT, scaled
from robust_run.planning.results import Summary
from robust_run.planning.show import lines_of
from robust_run.planning.words import FaultKind, Mix, Plan, Saving, Spread, Times

MANY = Plan(nodes=30, gpus_per_node=2, standby=4, days=8.0, mix=scaled(DEFAULT, 200.0), price=2.0)
LOADING = "process groups and loading take half as long"


def summary(plan: Plan = MANY) -> Summary:
    return planned(plan, range(2), 1, advises=False).summary


def test_the_best_comes_first_and_a_share_is_its_gpu_hours_and_its_money() -> None:
    found = summary().improvements
    assert found and [each.share for each in found] == sorted((each.share for each in found), reverse=True)
    for each in found:
        assert each.gpu_hours == pytest.approx(each.share * 30 * 2 * 8 * 24)
        assert each.money == pytest.approx(2.0 * each.gpu_hours)


def test_what_it_says_of_loading_is_what_half_the_time_brings() -> None:
    """Of faults that leave nothing behind: what else comes of a change is chance, and more than what it brings."""
    faults = {"it": FaultKind(shows="crash", trouble="cuda", per_1000_node_days=200.0)}
    plan = msgspec.structs.replace(MANY, mix=Mix(faults=faults), saving=Saving(memory_steps=0, every_s=60.0))
    slow = msgspec.structs.replace(plan, times=Times(connect=Spread(300.0), load_storage=Spread(100.0)))
    fast = msgspec.structs.replace(plan, times=Times(connect=Spread(150.0), load_storage=Spread(50.0)))
    before, after = summary(slow), summary(fast)
    (said,) = [each for each in before.improvements if each.what == LOADING]
    assert after.goodput.mean - before.goodput.mean == pytest.approx(said.share, rel=0.15)


def test_times_that_nobody_gave_are_called_guesses() -> None:
    (said,) = [each for each in summary().improvements if each.what == LOADING]
    assert "connect 20 s (a guess)" in said.rests_on
    mine = msgspec.structs.replace(MANY, times=Times(connect=Spread(25.0)))
    (said,) = [each for each in summary(mine).improvements if each.what == LOADING]
    assert "connect 25 s, " in said.rests_on, "it was given"


def test_what_is_lost_by_phase_and_cause_is_all_that_is_lost() -> None:
    found = improvements(MANY, {"load": {"a": 0.02, "b": 0.01}, "redo": {"nan": 0.04, "hang": 0.001}})
    assert {each.what: round(each.share, 6) for each in found} == {
        LOADING: 0.015,
        "wrong numbers are noticed in half the time": 0.02,
        "half as many faults of the kind nan": 0.02,
        "half as much is trained again": 0.0005,
        "half as many faults of the kind hang": 0.0005,
    }
    assert improvements(MANY, {}) == ()


def test_the_list_is_shown_and_is_not_where_nothing_is_lost() -> None:
    assert any(line.startswith("what to improve") for line in lines_of(summary()))
    calm = msgspec.structs.replace(MANY, mix=msgspec.structs.replace(DEFAULT, faults={}))
    shown = "\n".join(lines_of(summary(calm)))
    assert "half as many faults" not in shown
