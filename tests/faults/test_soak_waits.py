"""The soak of waits: what is drawn can be drawn again, what counts as an action, and pages whose parts leave each other alone."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import Outcome
from jobs import Job
from left_alone import Went, how_it_went
from matrix import NEGATIVES
from waits import WAITS

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import soak_waits
from busy import PROGRAM, busy, shares
from soak_page import part_of, with_part
from soak_waits import MIXED_LOADS, MIXED_S, drawn, end_s, how_it_worked, in_groups, try_all_waits, try_mixed
from soak_waits_page import BEGINNING, Cell, Tried, mixed_part, waits_part

ENDED_S = 60.0


# --- the load


def test_a_load_is_so_many_processes_and_a_part_of_one() -> None:
    assert shares(0.5) == [0.5]
    assert shares(20) == [1.0] * 20
    assert shares(2.25) == [1.0, 1.0, 0.25]
    assert shares(0) == []


def test_whatever_happens_nothing_of_the_load_goes_on() -> None:
    with pytest.raises(OSError, match="broken"), busy(1.5, limit_s=600.0) as processes:
        assert [process.poll() for process in processes] == [None, None]
        raise OSError("broken")
    assert None not in [process.poll() for process in processes]


@pytest.mark.parametrize(("limit_s", "parent"), [("0", "of ours"), ("600", "1")], ids=["limit", "parent"])
def test_it_ends_after_its_limit_and_when_who_started_it_is_gone(limit_s: str, parent: str) -> None:
    import os

    parent = str(os.getpid()) if parent == "of ours" else parent
    assert subprocess.run([sys.executable, "-c", PROGRAM, "1", limit_s, parent], timeout=ENDED_S).returncode == 0


# --- what is drawn


def test_what_is_mixed_is_drawn_from_the_seed_and_its_number_alone() -> None:
    some = [drawn(3, number, 6) for number in range(20)]
    assert some == [drawn(3, number, 6) for number in reversed(range(20))][::-1]
    assert some != [drawn(4, number, 6) for number in range(20)]


def test_in_hours_all_waits_all_work_and_all_loads_are_drawn() -> None:
    some = [drawn(0, number, 6) for number in range(400)]
    assert {wait for mix in some for wait, _ in mix.waits} == set(WAITS)
    assert {mix.work.case.number for mix in some} == {case.number for case in NEGATIVES}
    assert {mix.load for mix in some} == set(MIXED_LOADS)
    assert all(MIXED_S[0] <= seconds <= MIXED_S[1] for mix in some for _, seconds in mix.waits)
    assert all(len(mix.waits) == len(dict(mix.waits)) == 5 for mix in some)


def test_each_wait_is_in_one_group() -> None:
    assert [list(group) for group in in_groups(["a", "b", "c", "d", "e"], 2)] == [["a", "b"], ["c", "d"], ["e"]]


def test_a_job_has_more_time_where_it_waits_longer_or_the_machine_is_busy() -> None:
    assert end_s(20, 0.5) < end_s(90, 0.5) < end_s(20, 20) < end_s(90, 20) < 3600


# --- what counts


def job(
    tmp_path: Path, said: str = "OK 0 1\nOK 1 1", code: int = 0, starts: int = 1, incidents: tuple[str, ...] = ()
) -> Job:
    folder = tmp_path / "run"
    folder.mkdir()
    lines: list[dict[str, Any]] = [
        {"event": {"type": "attempt_started", "attempt": number}} for number in range(starts)
    ]
    for action in incidents:
        found = {"type": "record_incident", "action": action, "verdict": {"sentence": f"rank 0 slept: {action}"}}
        lines.append({"action": found})
    (folder / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [sys.executable, "-c", f"import sys; print({said!r}); sys.exit({code})"]
    return Job(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), tmp_path, "run")


def test_a_job_that_came_to_its_end_was_left_alone(tmp_path: Path) -> None:
    assert how_it_went(job(tmp_path)) == Went()


def test_what_is_only_said_is_no_failure(tmp_path: Path) -> None:
    went = how_it_went(job(tmp_path, incidents=("report",)))
    assert (went.said, went.acted, went.problem) == (("rank 0 slept: report",), (), "")


def test_what_is_done_about_a_wait_is_an_action(tmp_path: Path) -> None:
    went = how_it_went(job(tmp_path, starts=2, incidents=("report", "relaunch")))
    assert went.acted == ("relaunch: rank 0 slept: relaunch", "it was started 2 times")
    assert went.problem.startswith("relaunch: rank 0 slept")


@pytest.mark.parametrize(
    ("said", "code", "problem"), [("OK 0 1", 0, "a rank did not say that"), ("", 3, "the job ended with 3")]
)
def test_a_job_must_come_to_its_own_end(tmp_path: Path, said: str, code: int, problem: str) -> None:
    went = how_it_went(job(tmp_path, said, code))
    assert not went.acted
    assert went.problem.startswith(problem)


def outcome(kind: str = "", action: str = "", problem: str = "") -> Outcome:
    return Outcome(
        "34",
        "34",
        "dp",
        4,
        "middle",
        1,
        False,
        True,
        [],
        [],
        kind=kind,
        action=action,
        problem=problem,
        sentence="slow",
    )


def test_work_may_be_spoken_of_and_nothing_else() -> None:
    assert how_it_worked(outcome()) == Went()
    assert how_it_worked(outcome("slow", "report")) == Went(said=("slow",), suspected=True)
    assert how_it_worked(outcome("slow", "evict")).problem == "evict: slow"
    assert how_it_worked(outcome(problem="no step")).problem == "no step"


# --- how long


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Have nothing tried; the list says what would have been."""
    made: list[tuple[Any, ...]] = []

    def try_waits(waits: list[tuple[str, float]], load: float, work: Any = None, number: int = 0) -> list[Tried]:
        made.append((waits, load))
        return [Tried(wait, seconds, load, Went(), number=number) for wait, seconds in waits]

    monkeypatch.setattr(soak_waits, "try_waits", try_waits)
    return made


def test_all_waits_are_tried_at_each_length_and_load(tries: list[tuple[Any, ...]]) -> None:
    saved: list[int] = []
    cells = [Cell(20, 0.5), Cell(90, 20)]
    found = try_all_waits(cells, ["a", "b", "c"], 2, math.inf, lambda _: None, lambda it: saved.append(len(it)))
    assert tries == [([("a", 20), ("b", 20)], 0.5), ([("c", 20)], 0.5), ([("a", 90), ("b", 90)], 20), ([("c", 90)], 20)]
    assert [len(found[cell]) for cell in cells] == [3, 3]
    assert saved == [1, 1, 2, 2]


def test_when_the_time_is_over_nothing_new_is_begun(tries: list[tuple[Any, ...]]) -> None:
    said: list[str] = []
    assert try_all_waits([Cell(20, 0.5)], ["a"], 2, -math.inf, said.append, lambda _: None) == {}
    assert try_mixed(0, 6, -math.inf, said.append, lambda _: None) == []
    assert tries == []
    assert said == ["the time is over: 20 s at load 0.5 and what follows is not complete"]


def test_a_mixed_trial_can_be_made_again_by_its_number(tries: list[tuple[Any, ...]]) -> None:
    try_mixed(5, 6, -math.inf, lambda _: None, lambda _: None, only=[7])
    mix = drawn(5, 7, 6)
    assert [load for _, load in tries] == [mix.load]
    assert set(tries[0][0]) <= set(mix.waits)


# --- the page

CELL, BUSY = Cell(20, 0.5), Cell(20, 20)
WENT_WRONG = Tried("event", 20, 20, Went(acted=("relaunch: rank 0 | slept",), said=("s",), suspected=True))


def test_the_page_of_waits_counts_and_names_what_repeats_a_failure() -> None:
    found = {CELL: [Tried("sleep", 20, 0.5, Went())], BUSY: [WENT_WRONG]}
    lines = waits_part([], found, 88, {"attached": "gdb is not installed"}, "2026-11-23, commit abc")
    assert "| 20 s | 0.5 | 1 of 88 | 0 | 0 | 0 | 0 | 1 | 2026-11-23, commit abc |" in lines
    assert "| 20 s | 20 | 1 of 88 | 1 | 0 | 1 | 1 | 1 | 2026-11-23, commit abc |" in lines
    again = "`python bench/soak.py --waits 20 --load 20 --only-waits event`"
    assert f"- 20 s at load 20: event ({again}): relaunch: rank 0 / slept" in lines
    assert "Left out: attached (gdb is not installed)." in lines


def test_what_was_not_tried_now_stays_on_the_page() -> None:
    before = waits_part([], {BUSY: [WENT_WRONG], Cell(90, 0.5): []}, 88, {}, "before")
    after = waits_part(before, {CELL: [Tried("sleep", 20, 0.5, Went())]}, 88, {}, "now")
    rows = [line for line in after if line.startswith("| ") and "wait" not in line]
    assert [row.split("|")[1:3] for row in rows] == [[" 20 s ", " 0.5 "], [" 90 s ", " 0.5 "], [" 20 s ", " 20 "]]
    assert any(line.startswith("- 20 s at load 20: event") for line in after)
    again = waits_part(after, {BUSY: [Tried("event", 20, 20, Went())]}, 88, {}, "later")
    assert "No failures." in again
    assert sum(line.startswith("| 20 s | 20 |") for line in again) == 1


def test_each_mode_writes_its_own_part() -> None:
    waits = waits_part([], {CELL: [Tried("sleep", 20, 0.5, Went())]}, 88, {}, "now")
    mixed = mixed_part([WENT_WRONG, Tried("34 nothing", 20, 20, Went(), is_work=True)], 7, 6, 7200, "now")
    page = with_part(with_part(BEGINNING, "waits", waits), "mixed", mixed)
    assert page.startswith(BEGINNING.rstrip())
    assert part_of(page, "waits") == waits
    assert part_of(page, "mixed") == mixed
    assert with_part(with_part(page, "waits", ["other"]), "waits", waits) == page
    assert part_of(page, "nothing") == []


def test_the_page_of_what_was_mixed_counts_by_load() -> None:
    lines = mixed_part([WENT_WRONG, Tried("34 nothing", 20, 20, Went(), is_work=True)], 7, 6, 7200, "today")
    assert "today: 2.0 hours, 6 jobs at a time, seed 7." in lines
    assert "| 20 | 1 | 1 | 1 | 0 | 1 | 1 |" in lines
    again = "`python bench/soak.py --seed 7 --together 6 --mixed 0 --only 0`"
    assert f"- event for 20 s at load 20 ({again}): relaunch: rank 0 / slept" in lines
    assert "Work: 34 nothing (1)." in lines
