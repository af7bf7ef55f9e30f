"""Nodes with a past: people are told of them, and nothing else happens to a node or a job because of it."""

from __future__ import annotations

import copy
import inspect
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.fleet.found import Found
from robust_run.fleet.remembered import remembered
from robust_run.fleet.words import IncidentFacts, RunFacts
from robust_run.launcher.controller.remembered_nodes import RememberedNodes, words_of
from robust_run.launcher.core.state import JobState, Member
from robust_run.launcher.model.events import AttemptStarted
from robust_run.launcher.model.job import NodeInfo
from robust_run.launcher.model.node_events import NodeJoined

PACKAGE = Path(__file__).parents[3] / "robust_run"
NOW_S = 1.7e9
DAY_S = 86400.0


def fault(node: str, days_ago: float, **more: Any) -> IncidentFacts:
    one = IncidentFacts(
        number=1,
        at_s=NOW_S - days_ago * DAY_S,
        symptom="",
        kind="crash",
        component="gpu",
        trouble="gpu.ecc",
        nodes=(node,),
        action="evict",
        evicted=(node,),
        confidence="high",
    )
    return msgspec.structs.replace(one, **more)


def run(*incidents: IncidentFacts, run_id: str = "r", until_s: float = NOW_S) -> RunFacts:
    return RunFacts(run_id=run_id, began_s=NOW_S - 100 * DAY_S, until_s=until_s, incidents=incidents)


def names(*incidents: IncidentFacts, nodes: str = "ab") -> list[str]:
    return [each.node for each in remembered([run(*incidents)], set(nodes), NOW_S)]


# --- who is no such node


def test_a_node_that_failed_once_is_as_good_as_any_other() -> None:
    assert names(fault("a", 0.1)) == []


def test_what_is_long_ago_is_forgotten() -> None:
    assert names(fault("a", 40), fault("a", 41), fault("a", 42)) == []


def test_one_fault_that_struck_again_and_again_within_the_hour_is_one() -> None:
    assert names(*(fault("a", 1 + number / 24 / 4) for number in range(8))) == []


def test_a_neighbour_s_fault_is_nobody_s_own() -> None:
    assert names(*(fault("a", number, nodes=("a", "b")) for number in range(1, 6))) == []


def test_a_program_that_failed_on_it_and_a_guess_do_not_count() -> None:
    assert names(*(fault("a", number, component="program") for number in range(1, 6))) == []
    assert names(*(fault("a", number, component="code", kind="code") for number in range(1, 6))) == []
    assert names(*(fault("a", number, confidence="low") for number in range(1, 6))) == []


def test_the_same_run_twice_counts_once() -> None:
    one = run(fault("a", 1))
    assert remembered([one, one], {"a"}, NOW_S) == ()


def test_a_clock_that_is_ahead_does_not_count() -> None:
    assert names(fault("a", -3), fault("a", -2)) == []
    assert remembered([run(fault("a", 1), fault("a", 2), until_s=NOW_S + 9 * DAY_S)], {"a"}, NOW_S) == ()


def test_nodes_of_other_jobs_are_none_of_this_one_s_business() -> None:
    assert names(fault("z", 1), fault("z", 2)) == []


# --- who is


def test_two_failures_of_these_days_are_remembered_the_worst_first() -> None:
    assert names(fault("b", 1), fault("b", 2), fault("a", 0.1), fault("a", 0.5), fault("a", 1)) == ["a", "b"]


@given(days=st.lists(st.floats(-5, 200), max_size=8))
def test_any_past_is_understood(days: list[float]) -> None:
    found = remembered([run(*(fault("a", each) for each in days))], {"a"}, NOW_S)
    assert all(each.failures >= 2 and each.weight >= 1 for each in found)


# --- what is done


class Clock:
    def unix_s(self) -> float:
        return NOW_S

    def monotonic_s(self) -> float:
        return 0.0


def looking(read: Callable[[], Found]) -> tuple[RememberedNodes, queue.Queue[Callable[[], None] | str]]:
    done: queue.Queue[Callable[[], None] | str] = queue.Queue()
    return RememberedNodes(read, Clock(), done.put, done.put, "r7"), done


def state_of(*nodes: str) -> JobState:
    state = JobState()
    for number, name in enumerate(nodes):
        state.members[f"id-{name}"] = Member(info=NodeInfo(id=f"id-{name}", name=name, nproc=1), joined=number)
    return state


STARTED = AttemptStarted(attempt=0, node="id-a", pids=(1,), port=1)
BAD = Found(facts=(run(fault("a", 0.1), fault("a", 1), fault("a", 2)),))


def test_people_are_told_once_when_the_job_has_begun_to_run() -> None:
    nodes, done = looking(lambda: BAD)
    state = state_of("a", "b")
    nodes.after(NodeJoined(node=NodeInfo(id="id-a", name="a", nproc=1)), state)
    nodes.after(STARTED, state)
    nodes.after(STARTED, state)
    tell = done.get(timeout=60)
    assert callable(tell)
    tell()
    line = done.get(timeout=60)
    assert line == (
        "failed in earlier jobs: a (3 times, the last 2 h 24 min ago: crash). They are used like all others; robust evict a r7 "
        "takes one out, and robust check on it, when no job trains there, says whether it is sound"
    )
    assert done.empty()


def test_the_job_does_not_wait_for_a_folder_that_hangs() -> None:
    held: queue.Queue[Found] = queue.Queue()
    nodes, done = looking(held.get)
    nodes.after(STARTED, state_of("a"))  # returns
    assert done.empty()
    held.put(BAD)
    assert callable(done.get(timeout=60))


def test_a_job_that_is_over_by_then_is_told_nothing() -> None:
    said: queue.Queue[str] = queue.Queue()
    asked: queue.Queue[str] = queue.Queue()

    def closed(_: Callable[[], None]) -> None:
        asked.put("asked")
        raise RuntimeError("Event loop is closed")

    RememberedNodes(lambda: BAD, Clock(), said.put, closed, "r").after(STARTED, state_of("a"))
    assert asked.get(timeout=60) and said.empty()


def test_a_fault_of_ours_is_one_line() -> None:
    def breaks() -> Found:
        raise KeyError("a bug")

    nodes, done = looking(breaks)
    nodes.after(STARTED, state_of("a"))
    line = done.get(timeout=60)
    assert isinstance(line, str) and "looking for nodes that failed in earlier jobs is off" in line


def test_a_healthy_node_with_a_bad_past_is_never_evicted_for_it() -> None:
    """Nothing here can tell the core anything: neither an event nor a change of the job's state leaves this place."""
    nodes, done = looking(lambda: BAD)
    state = state_of("a", "b")
    before = copy.deepcopy(state)
    nodes.after(STARTED, state)
    done.get(timeout=60)
    assert state == before
    assert "tell" not in inspect.signature(RememberedNodes.__init__).parameters


@pytest.mark.parametrize("room", ["launcher/core", "launcher/model", "health"])
def test_what_decides_does_not_know_of_the_fleet(room: str) -> None:
    """So a past can evict, end and delay nothing, whoever fails beside it. A type in `World` is none of a decision's."""
    modules = [path for path in (PACKAGE / room).rglob("*.py") if path.name != "world.py"]
    assert modules and not [path for path in modules if "robust_run.fleet" in path.read_text()]


def test_many_are_named_in_one_line() -> None:
    past = [fault(name, days) for name in "abcdefg" for days in (0.5, 1.0)]
    line = words_of(remembered([run(*past)], set("abcdefg"), NOW_S), "r7", NOW_S)
    assert "d (2 times" in line and " and 3 more. " in line and "\n" not in line


@pytest.mark.parametrize("found", [Found(), Found(left_out={"damaged": 3})])
def test_no_past_is_no_line(found: Found) -> None:
    read = queue.Queue[str]()

    def reads() -> Found:
        read.put("read")
        return found

    nodes, done = looking(reads)
    nodes.after(STARTED, state_of("a"))
    read.get(timeout=60)
    assert done.empty()
