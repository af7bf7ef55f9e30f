"""DAPO in a job of three roles, with members that are killed: what each role loses, and that the training loses nothing."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from rl_jobs import Result, pids, train


def problems(result: Result, *fates: str) -> list[int]:
    return [number for step in result.steps.values() for fate in fates for number in step[fate]]


def check_each_problem_has_one_fate(result: Result) -> None:
    """No problem was trained on twice; those that were neither trained on, dropped nor refused were still on their way."""
    counted = Counter(problems(result, "trained", "dropped"))
    assert counted
    assert set(counted.values()) == {1}
    settled = len(counted) + result.final["refused"]
    missing = result.final["asked"] - settled
    assert 0 <= missing <= result.final["in_flight"], result.final


def test_a_rollout_that_is_killed_costs_the_trainer_nothing(tmp_path: Path) -> None:
    result = train(tmp_path, "dapo", "--steps", "7", "--every", "1", strikes=[(3, "rollout-0")])
    assert len(pids(result.folder, "trainer-0")) == 1
    assert {line["pid"] for line in result.lines} == set(pids(result.folder, "trainer-0"))
    assert len(pids(result.folder, "rollout-0")) == 2
    assert sorted(result.steps) == list(range(1, 8)) == [line["step"] for line in result.lines]
    check_each_problem_has_one_fate(result)
    last = result.steps[7]
    assert result.final["kept"] == len(last["trained"]) + len(last["dropped"]), (
        "a trainer may go back by one checkpoint"
    )


@pytest.mark.timeout(600)
def test_in_synchronous_mode_weights_are_the_same_whatever_died(tmp_path: Path) -> None:
    rollout = train(tmp_path / "rollout", "dapo", "--synchronous", "--steps", "6", strikes=[(3, "rollout-0")])
    trainer = train(
        tmp_path / "trainer", "dapo", "--synchronous", "--steps", "6", "--every", "1", strikes=[(3, "trainer-0")]
    )
    assert len(pids(rollout.folder, "rollout-0")) == 2
    assert len(pids(trainer.folder, "trainer-0")) == 2
    assert len(pids(trainer.folder, "rollout-0")) == 1, "rollouts keep their engines while the trainer is away"
    for result in (rollout, trainer):
        check_each_problem_has_one_fate(result)
        assert sorted(problems(result, "trained", "dropped")) == list(range(result.final["asked"]))
    assert rollout.final["weights_sha256"] == trainer.final["weights_sha256"]
    for step, line in rollout.steps.items():
        assert trainer.steps[step]["trained"] == line["trained"]


@pytest.mark.timeout(1800)
def test_it_learns_while_a_rollout_dies(tmp_path: Path) -> None:
    """To the end with TEST_WAITS=all, as `make test-all` has it: minutes. Else until responses have the form of an answer."""
    target = 0.9 if os.environ.get("TEST_WAITS") == "all" else 0.1
    result = train(tmp_path, "dapo", "--target", str(target), strikes=[(10, "rollout-1")])
    assert result.steps[1]["reward"] < 0.05, "it knows nothing to begin with"
    assert result.final["reward"] >= target
    assert len(pids(result.folder, "trainer-0")) == 1
    assert len(pids(result.folder, "rollout-1")) == 2
    check_each_problem_has_one_fate(result)
