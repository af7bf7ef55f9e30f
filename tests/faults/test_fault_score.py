"""What the bench of faults counts: what is proven, by kind and by case, and what was proven falsely."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from harness import Outcome

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from fault_score import Row, by_case, print_proven, print_scores, proven_by_kind, score


def row(number: str = "1", expected: str = "hang", action: str = "report", **more: object) -> Row:
    negative = not expected
    outcome = Outcome(
        f"{number}-run", number, "dp", 4, "middle", 0, False, negative, expected.split(), [] if negative else [2]
    )
    values = {"kind": expected.partition(" ")[0], "exact": not negative, "kind_right": not negative, "action": action}
    return {**asdict(outcome), **values, **more}


def test_the_share_of_faults_that_is_proven_is_told_by_kind() -> None:
    rows = [row("R1", action="relaunch"), row("R1"), row("4"), row("12", "mismatch", "relaunch"), row("34", "")]
    assert proven_by_kind(rows) == [
        {"kind": "hang", "runs": 3, "proven": 1, "share": 0.3333},
        {"kind": "mismatch", "runs": 1, "proven": 1, "share": 1.0},
    ]
    assert score(rows)["proven"] == 2
    assert score(rows)["proven_share"] == 0.5


def test_it_is_told_by_case_too() -> None:
    lines = {line["number"]: line for line in by_case([row("R1", action="relaunch"), row("R1"), row("R12")])}
    assert (lines["R1"]["proven"], lines["R1"]["runs"]) == (1, 2)
    assert (lines["R12"]["proven"], lines["R12"]["runs"]) == (0, 1)


def test_what_is_not_proven_is_no_failure() -> None:
    found = score([row("4"), row("5")])
    assert (found["recall"], found["precision"], found["proven_share"], found["false_proofs"]) == (1.0, 1.0, 0.0, 0)


@pytest.mark.parametrize(
    ("false", "counts"),
    [
        (row("34", "", "relaunch", kind="hang"), 1),
        (row("4", action="evict", early=True, exact=False), 1),
        (row("34", "", "report", kind="hang"), 0),
        (row("4", action="report", early=True, exact=False), 0),
        (row("12", "mismatch", "relaunch"), 0),
        (row("34", "", "relaunch", kind="hang", problem="no step"), 1),
    ],
)
def test_a_false_proof_is_something_done_about_nothing(false: Row, counts: int) -> None:
    assert score([false, row("1")])["false_proofs"] == counts
    assert sum(line["proven"] for line in by_case([false])) == (false["number"] == "12")


def test_runs_that_say_nothing_are_left_out() -> None:
    assert proven_by_kind([row("R1", action="relaunch", problem="it did not strike")]) == []


def test_both_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row("R1", action="relaunch"), row("4"), row("34", "", "", kind="")]
    print_scores({"held-out": score(rows)})
    print_proven("held-out", rows)
    said = capsys.readouterr().out
    assert "false proofs" in said
    assert "held-out: of hang 1 of 2 proven\n    case R1: 1 of 1 proven\n" in said
