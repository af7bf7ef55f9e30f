"""Who may join: refused for what is wrong, not for what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from robust_run.health.checks.admission import ADMISSION, admit
from robust_run.health.checks.history import History, Output
from robust_run.health.checks.judge import judge
from robust_run.health.checks.plan import plan
from robust_run.health.checks.types import NodeFacts, Result

Make = Callable[..., Result]


@pytest.mark.parametrize(
    ("change", "admitted", "rule"),
    [
        ({}, True, "passed"),
        ({"wrong": ("pass 7: a matrix product differs",)}, False, "wrong_result"),
        ({"outcome": "hung", "problem": "killed at its limit"}, False, "hung"),
        ({"outcome": "failed", "problem": "torch cannot be imported"}, True, "unchecked"),
    ],
)
def test_what_a_standby_shows_decides(result: Make, change: dict[str, object], admitted: bool, rule: str) -> None:
    found = admit(judge([result("compute", "a", **change)]), "a")
    assert (found.admitted, found.rule) == (admitted, rule) and found.sentence


def test_a_standby_that_computes_otherwise_than_the_fleet_did(result: Make) -> None:
    history = History(outputs={"model cpu": (Output(digest="x", nodes=("old", "older")),)})
    found = admit(judge([result("model", "a", digests={"y": 3})], history=history), "a")
    assert (found.admitted, found.rule) == (False, "other_output_than_before")


def test_a_standby_on_which_something_else_runs_for_a_moment_is_admitted(result: Make) -> None:
    history = History(series={"compute flop_per_s cpu": (10e9,) * 6})
    slow = result("compute", "a", figures={"flop_per_s": 3e9}, cpus=8, others_cpus=4.0)
    found = admit(judge([slow], history=history), "a")
    assert (found.admitted, found.rule) == (True, "unchecked") and "4.0 of 8 CPUs of a" in found.sentence


def test_a_standby_needs_nobody_else() -> None:
    made = plan([NodeFacts(name="a")], ADMISSION)
    assert not made.left_out and all(group == ("a",) for each in made.rounds for group in each.groups)
