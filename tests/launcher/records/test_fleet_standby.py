"""`--standby auto` by what a folder's jobs have shown: little changes little, and nothing that lies there does harm."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import MOMENT, Machine

from robust_run.fleet.daily import LEAST_NODE_DAYS, MOST, PRIOR_NODE_DAYS, daily_rate
from robust_run.fleet.found import Found
from robust_run.fleet.words import IncidentFacts, RunFacts
from robust_run.launcher.core.spares import DAILY_FAILURE_RATE, standby_count
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.options.command import parse
from robust_run.launcher.start.options.validate import resolve

DAY_S = 86400.0
NOW_S = time.mktime(MOMENT)


def gone(*hosts: str, at_s: float = NOW_S - DAY_S, **more: Any) -> IncidentFacts:
    one = IncidentFacts(number=1, at_s=at_s, symptom="", kind="node_fault", action="evict", nodes=hosts, evicted=hosts)
    return msgspec.structs.replace(one, **more)


def run(nodes: int, days: float, *incidents: IncidentFacts, ended_days_ago: float = 0.0) -> RunFacts:
    until_s = NOW_S - ended_days_ago * DAY_S
    return RunFacts(
        run_id=f"r{nodes}-{days}",
        began_s=until_s - days * DAY_S,
        until_s=until_s,
        nodes=nodes,
        node_s={f"n{number}": days * DAY_S for number in range(nodes)},
        incidents=incidents,
    )


def rate(*runs: RunFacts) -> float:
    return daily_rate(runs, DAILY_FAILURE_RATE, NOW_S).rate


# --- the rate


def test_nothing_and_little_are_the_usual_rate() -> None:
    assert rate() == DAILY_FAILURE_RATE
    assert rate(run(24, 10, gone("n1"), gone("n2"))) == DAILY_FAILURE_RATE  # 240 node-days


def test_one_failure_more_changes_it_by_a_third_at_most() -> None:
    node_days = LEAST_NODE_DAYS + 1
    few, one_more = rate(run(251, 1)), rate(run(251, 1, gone("n1")))
    assert node_days == 251
    assert one_more / few == pytest.approx(4 / 3)
    assert few == pytest.approx(DAILY_FAILURE_RATE * PRIOR_NODE_DAYS / (PRIOR_NODE_DAYS + 251))


def test_much_is_the_fleet_s_own_rate() -> None:
    lost = [gone(f"n{number}", at_s=NOW_S - number % 50 * DAY_S) for number in range(300)]
    assert rate(run(1000, 50, *lost)) == pytest.approx(300 / 50_000, rel=0.05)


def test_a_node_that_goes_all_day_counts_once_and_every_other_node_too() -> None:
    noon_s = NOW_S // DAY_S * DAY_S - DAY_S / 2
    often = [gone("n1", at_s=noon_s + number) for number in range(100)]
    assert daily_rate([run(300, 1.5, *often)], DAILY_FAILURE_RATE, NOW_S).failed == 1
    assert daily_rate([run(300, 1.5, gone("n1", "n2", at_s=noon_s))], DAILY_FAILURE_RATE, NOW_S).failed == 2


def test_one_node_that_fails_for_weeks_is_one_to_be_repaired_and_buys_no_standbys_for_all() -> None:
    lemon = [gone("n1", at_s=NOW_S - number * DAY_S) for number in range(1, 38)]
    assert daily_rate([run(100, 40, *lemon)], DAILY_FAILURE_RATE, NOW_S).failed == 3


def test_what_took_no_node_out_does_not_count() -> None:
    blamed = gone("n1", kind="crash", action="relaunch", evicted=())
    reported = gone("n1", kind="slow", action="report", evicted=())
    assert daily_rate([run(300, 1, blamed, reported)], DAILY_FAILURE_RATE, NOW_S).failed == 0
    lost = gone("n1", kind="node_lost", action="relaunch", evicted=())
    assert daily_rate([run(300, 1, lost)], DAILY_FAILURE_RATE, NOW_S).failed == 1


def test_what_is_long_ago_and_what_is_to_come_does_not_count() -> None:
    old = run(300, 10, gone("n1", at_s=NOW_S - 200 * DAY_S), ended_days_ago=195)
    ahead = run(300, 10, gone("n1"), ended_days_ago=-30)
    assert daily_rate([old, ahead], DAILY_FAILURE_RATE, NOW_S).runs == 0
    partly = run(300, 180, gone("n1", at_s=NOW_S - 100 * DAY_S), gone("n2", at_s=NOW_S - DAY_S))
    found = daily_rate([partly], DAILY_FAILURE_RATE, NOW_S)
    assert found.failed == 1 and found.node_days == pytest.approx(300 * 90)


def test_a_copy_counts_once() -> None:
    one = run(300, 1, gone("n1"))
    assert daily_rate([one, one], DAILY_FAILURE_RATE, NOW_S).node_days == pytest.approx(300)


@given(days=st.floats(0, 90), count=st.integers(0, 300), nodes=st.integers(1, 300))
def test_whatever_was_seen_it_is_bounded(days: float, count: int, nodes: int) -> None:
    found = rate(run(nodes, days, *(gone(f"n{number}") for number in range(count))))
    assert 0 < found <= MOST


# --- the option


def spec(machine: Machine, found: Found, *words: str) -> JobSpec:
    asked: list[str] = []

    def fleet(log_dir: str) -> Found:
        asked.append(log_dir)
        return found

    options = parse([*words, "train.py"], {})
    made = resolve(options, machine.world(fleet=fleet))
    spec.asked = asked  # type: ignore[attr-defined]
    return made


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


MANY = ("--nnodes", "512", "--rdzv-backend", "c10d", "--rdzv-endpoint", "head:29400", "--nproc-per-node", "1")
BAD = Found(facts=(run(1000, 50, *(gone(f"n{number}", at_s=NOW_S - number % 50 * DAY_S) for number in range(300))),))


def many(made: JobSpec) -> Any:
    assert made.many is not None
    return made.many


def test_a_fleet_that_fails_often_has_more_standbys_and_the_line_says_why(machine: Machine) -> None:
    told = many(spec(machine, BAD, *MANY, "--standby", "auto"))
    assert told.standby == standby_count(512, rate(*BAD.facts)) > 3
    assert told.standby_why.startswith(
        f"{told.standby} standbys: 300 nodes failed in 50,000 node-days of 1 jobs of /job/robust-runs"
    )
    assert told.standby_why.endswith("3 without them")


def test_an_empty_folder_is_the_usual_number(machine: Machine) -> None:
    told = many(spec(machine, Found(), *MANY, "--standby", "auto"))
    assert told.standby == 3 and "as in large clusters; in 0 node-days of 0 jobs" in told.standby_why


def test_a_damaged_folder_changes_the_line_alone(machine: Machine) -> None:
    usual = spec(machine, Found(), *MANY, "--standby", "auto")
    damaged = spec(machine, Found(left_out={"damaged": 7}), *MANY, "--standby", "auto")
    assert "(left out: 7 damaged)" in many(damaged).standby_why
    blank = msgspec.structs.replace(many(usual), standby_why="")
    assert msgspec.structs.replace(many(damaged), standby_why="") == blank


def test_a_number_is_a_number(machine: Machine) -> None:
    told = many(spec(machine, BAD, *MANY, "--standby", "2"))
    assert told.standby == 2 and not told.standby_why and not spec.asked  # type: ignore[attr-defined]


def test_whether_there_is_one_node_and_how_many_work_never_depends_on_it(machine: Machine) -> None:
    terrible = Found(facts=(run(300, 90, *(gone(f"n{number}") for number in range(300))),))
    assert spec(machine, terrible, "--nproc-per-node", "1", "--standby", "auto").many is None
    for found in (Found(), BAD, terrible):
        told = many(spec(machine, found, *MANY, "--standby", "auto"))
        assert (told.fewest, told.most, told.controller_standby) == (512, 512, 0)


def test_the_number_of_candidates_is_checked_as_ever(machine: Machine) -> None:
    good = Found(facts=(run(1000, 90),))
    words = ("--nnodes", "9", *MANY[2:], "--standby", "auto", "--controller-standby", "9")
    told = many(spec(machine, good, *words))
    assert told.controller_standby == 9 and told.standby == 0


def test_a_node_that_hosts_no_controller_does_not_look(machine: Machine) -> None:
    words = ("--nnodes", "512", "--node-rank", "7", "--master-addr", "head", "--nproc-per-node", "1")
    told = many(spec(machine, BAD, *words, "--standby", "auto"))
    assert told.standby == 3 and not spec.asked  # type: ignore[attr-defined]


def test_without_a_log_folder_there_is_no_memory(machine: Machine) -> None:
    told = many(spec(machine, BAD, *MANY, "--standby", "auto", "--log-dir", "/dev/null"))
    assert told.standby == 3 and not spec.asked  # type: ignore[attr-defined]
    assert told.standby_why == "3 standbys: 1.2 of 1,000 nodes fail a day, as in large clusters"
