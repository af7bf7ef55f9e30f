"""Folding: the order of runs does not matter, each counts once, and parts sum up to the whole."""

from __future__ import annotations

import random

import msgspec
import pytest
from fleet_made import BEGIN_S, DAY_S, Planted, fleet, incident, run
from hypothesis import given
from hypothesis import strategies as st

from robust_run.fleet.course import course
from robust_run.fleet.results import Fleet
from robust_run.fleet.runs import once, since
from robust_run.fleet.show import lines_of
from robust_run.fleet.totals import fold
from robust_run.fleet.words import CodeFacts, Lost, RunFacts, StartFacts

HOSTS = st.sampled_from(("a", "b", "c", "d"))
SECONDS = st.floats(0.0, 1e5)
INCIDENTS = st.builds(
    incident,
    number=st.integers(1, 9),
    at_s=st.floats(BEGIN_S - 10.0, BEGIN_S + 2e5),
    kind=st.sampled_from(("crash", "hang", "node_lost", "code", "stopped")),
    component=st.sampled_from(("gpu", "node", "code", "unknown", "network")),
    nodes=st.lists(HOSTS, max_size=3, unique=True).map(tuple),
    evicted=st.lists(HOSTS, max_size=1).map(tuple),
    action=st.sampled_from(("relaunch", "evict", "report")),
    lost=st.builds(Lost, detect=SECONDS, redo=SECONDS, load=SECONDS),
)
STARTS = st.builds(
    StartFacts,
    attempt=st.integers(0, 3),
    at_s=st.floats(BEGIN_S, BEGIN_S + 1e5),
    nodes=st.sampled_from((1, 2, 64, 5000)),
    began=st.sampled_from(("cold", "warm", "standby")),
    ready_s=st.none() | SECONDS,
    first_step_s=st.none() | SECONDS,
)


@st.composite
def runs(draw: st.DrawFn) -> RunFacts:
    began_s = BEGIN_S + draw(st.sampled_from((0.0, 10.0, 5e4)))
    return run(
        draw(st.sampled_from(("r1", "r2", "r3", "r4"))),
        began_s=began_s,
        until_s=began_s + draw(SECONDS),
        state=draw(st.sampled_from(("live", "done", "failed", "lost"))),
        nodes=draw(st.integers(1, 9)),
        gpus=draw(st.sampled_from((0, 8))),
        ettr=draw(st.none() | st.floats(0.0, 1.0)),
        node_s=draw(st.dictionaries(HOSTS, SECONDS)),
        incidents=tuple(draw(st.lists(INCIDENTS, max_size=4))),
        starts=tuple(draw(st.lists(STARTS, max_size=3))),
        code=tuple(draw(st.lists(st.builds(CodeFacts, version=HOSTS, failed=st.integers(0, 2)), max_size=2))),
    )


@given(st.lists(runs(), max_size=8), st.randoms(use_true_random=False), st.none() | st.just(BEGIN_S + 2e4))
def test_the_order_of_runs_does_not_matter(told: list[RunFacts], rng: random.Random, since_s: float | None) -> None:
    shuffled = told[:]
    rng.shuffle(shuffled)
    assert msgspec.json.encode(fold(shuffled, since_s)) == msgspec.json.encode(fold(told, since_s))


@given(st.lists(runs(), max_size=6), st.lists(runs(), max_size=6))
def test_two_folders_put_together_are_one_folder(first: list[RunFacts], second: list[RunFacts]) -> None:
    all_at_once = fold([*first, *second])
    put_together = fold([*once(first), *once(second)])
    assert msgspec.structs.replace(put_together, twice=all_at_once.twice) == all_at_once


@given(st.lists(runs(), max_size=8))
def test_parts_sum_up_to_the_whole(told: list[RunFacts]) -> None:
    found = fold(told)
    kept = once(told)
    assert found.runs == len(kept) == sum(found.by_state.values()) == len(found.lines)
    for parts in (found.by_kind, found.by_component, found.by_action):
        assert sum(part.incidents for part in parts.values()) == found.incidents
        whole = sum(part.node_hours for part in found.by_phase.values())
        assert sum(part.node_hours for part in parts.values()) == pytest.approx(whole)
    assert sum(each.starts for each in found.starts) == sum(len(each.starts) for each in kept)
    assert sum(each.run_s for each in found.course) == pytest.approx(found.hours * 3600.0)
    assert all(each.ettr is None or 0.0 <= each.ettr <= 1.0 for each in found.course)


def test_a_run_that_two_folders_have_counts_once_and_the_telling_that_reaches_further_counts() -> None:
    at_its_end = run("job", until_s=BEGIN_S + 100.0, state="done", place="/a/job")
    resumed = run("job", until_s=BEGIN_S + 500.0, state="live", place="/b/job")
    other = run("job", began_s=BEGIN_S + 1.0, place="/a/job-later")
    found = fold([at_its_end, resumed, at_its_end, other])
    assert (found.runs, found.twice) == (2, 2)
    assert {each.place for each in found.lines} == {"/b/job", "/a/job-later"}
    same = msgspec.structs.replace(at_its_end, state="lost")
    assert fold([same, at_its_end]).by_state == {"done": 1}, "its controller was gone before its end was read"


def test_time_of_which_nothing_could_be_written_counts_nowhere_and_is_said() -> None:
    found = fold([run("a"), run("b", gap_s=7200.0)])
    assert (found.with_gaps, found.gap_hours, found.hours) == (1, 2.0, 48.0)
    assert "nothing could be written of the last 2 h of 1 run (disk full?)" in "\n".join(lines_of(found))


def test_ettr_is_weighted_by_time_and_by_node_time() -> None:
    long = run("a", until_s=BEGIN_S + 3 * DAY_S, nodes=1, ettr=1.0)
    large = run("b", until_s=BEGIN_S + DAY_S, nodes=9, effective_s=DAY_S / 2)
    unknown = run("c", ettr=None)
    found = fold([long, large, unknown])
    assert found.ettr == pytest.approx(3.5 / 4)
    assert found.ettr_by_node_hours == pytest.approx((3 + 4.5) / 12)
    assert found.ettr_runs == 2


def test_of_a_run_that_began_before_the_share_after_a_time_counts() -> None:
    early, late = incident(1, BEGIN_S + 100.0), incident(2, BEGIN_S + 0.9 * DAY_S)
    whole = run("a", node_s={"n": DAY_S}, effective_s=DAY_S / 2, incidents=(early, late))
    part = since(whole, BEGIN_S + DAY_S / 4)
    assert part is not None
    assert (part.node_s["n"], part.effective_s) == (pytest.approx(0.75 * DAY_S), pytest.approx(0.375 * DAY_S))
    assert part.incidents == (late,)
    assert since(whole, BEGIN_S + DAY_S) is None
    found = fold([whole], BEGIN_S + DAY_S / 4)
    assert (found.cut, found.incidents, found.ettr) == (1, 1, pytest.approx(0.5))


def test_what_an_incident_cost_is_put_where_it_happened() -> None:
    struck = incident(1, BEGIN_S + 50 * DAY_S, lost=Lost(detect=DAY_S / 2))
    told = [run("a", until_s=BEGIN_S + 100 * DAY_S, effective_s=99.5 * DAY_S, incidents=(struck,))]
    points = course(told)
    worst = min(points, key=lambda each: 1.0 if each.ettr is None else each.ettr)
    assert worst.begin_s <= struck.at_s < worst.end_s
    assert worst.incidents == 1
    assert sum(each.ettr == 1.0 for each in points) == len(points) - 1


def test_code_versions_are_a_programs_own() -> None:
    bad = CodeFacts(version="v1", failed=2, rolled_back=True)
    good = CodeFacts(version="v2")
    found = fold([run("a", code=(bad, good)), run("b", code=(bad,)), run("c", name="other.py", code=(bad,))])
    assert [(each.name, each.version, each.failed, each.runs, each.rolled_back) for each in found.code] == [
        ("train.py", "v1", 4, 2, 2),
        ("other.py", "v1", 2, 1, 1),
    ]


def test_nothing_is_no_fleet_and_a_thousand_runs_are_one() -> None:
    empty = fold([])
    assert (empty.runs, empty.ettr, empty.course, empty.lemons.lemons) == (0, None, (), ())
    found = fold(fleet(Planted(), 1))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Fleet) == found
