"""`make soak`: what is drawn can be drawn again, all of it is drawn some day, and the page says what came of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from matrix import CASES
from waits import WAITS

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import soak
from soak import KINDS, Result, Trial, drawn, page_of


def test_a_trial_is_drawn_from_the_seed_and_its_number_alone() -> None:
    some = [drawn(3, number) for number in range(60)]
    again = [drawn(3, number) for number in reversed(range(60))][::-1]
    assert [(each.kind, each.name) for each in some] == [(each.kind, each.name) for each in again]
    assert [each.name for each in some] != [drawn(4, number).name for number in range(60)]
    assert [each.kind for each in some[:4]] == [*KINDS, KINDS[0]]


def test_in_hours_everything_is_drawn() -> None:
    trials = [drawn(0, number) for number in range(3000)]
    for kind, wanted in (
        ("fault", {f"{case.number} {case.name}" for case in CASES}),
        ("wait", set(WAITS)),
        ("power cut", set(soak.power_cuts.ACTS)),
    ):
        assert {each.what for each in trials if each.kind == kind} == wanted


def result(number: int, kind: str, problem: str = "") -> Result:
    return Result(Trial(number, kind, f"a {kind}", f"{kind} {number}", lambda _: problem), problem, 1.0)


def page(*results: Result, left_out: tuple[Trial, ...] = ()) -> str:
    return page_of(7, 660.0, results, left_out, "2 cores", "abc1234", "2026-11-23")


def test_the_page_counts_and_names_each_failure_with_what_repeats_it() -> None:
    text = page(result(0, "fault"), result(1, "wait"), result(3, "fault", "MISSED\nit"), result(4, "wait"))
    assert "2026-11-23, commit abc1234, on 2 cores: 11 minutes of" in text
    assert "| fault | 2 | 1 | 0 |" in text
    assert "| wait | 2 | 0 | 0 |" in text
    assert "- fault, fault 3 (`python bench/soak.py --seed 7 --only 3`): MISSED it" in text
    assert "**wait**: a wait (2)." in text


def test_a_page_without_failures_says_so_and_what_was_left_out() -> None:
    none = Trial(2, "power cut", "power", "power at host 1", lambda _: "", "needs root")
    text = page(result(0, "fault"), left_out=(none,))
    assert "## Failures\n\nNone.\n" in text
    assert "| power cut | 0 | 0 | 1 |" in text
    assert "Left out: needs root (1)." in text


def test_a_trial_that_breaks_is_a_failure_and_the_soak_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(_: Path) -> str:
        raise AssertionError("waited 60 s for nothing")

    trials = [Trial(0, "wait", "w", "w for 12 s", breaks), Trial(1, "wait", "w", "w for 13 s", lambda _: "")]
    monkeypatch.setattr(soak, "drawn", lambda _seed, number: trials[number])
    said: list[str] = []
    results, left_out = soak.soak(0, (0, 1), said.append)
    assert [each.problem for each in results] == ["AssertionError: waited 60 s for nothing", ""]
    assert left_out == []
    assert "1 tried, 1 failed | 0 wait w for 12 s: FAILED: AssertionError" in said[0]
    assert "2 tried, 1 failed | 1 wait w for 13 s: good" in said[1]
