"""Where orders go, and ends of members that run on several nodes."""

from __future__ import annotations

from typing import Any, cast

from robust_run.orchestrator.fleet import Fleet
from robust_run.orchestrator.launchers import Launchers
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RoleSpec, RolesSpec
from robust_run.orchestrator.model.state import JobState, Member
from robust_run.orchestrator.model.words import Event, StartMember, WorldEnded

WORLD = MemberName("world", 0)


def fleet(*nodes: str) -> tuple[Fleet, JobState, list[Event]]:
    spec = RolesSpec(name="job", roles=(RoleSpec(name="world", command=("a.py",), nodes=2),))
    state = JobState(members={WORLD: Member(name=WORLD, standing="running", serial=1, nodes=nodes)})
    told: list[Event] = []
    return Fleet(spec, state, "a", "10.0.0.1", cast("Launchers", Any), told.append), state, told


def ended(code: int, sentence: str = "", serial: int = 1) -> WorldEnded:
    return WorldEnded(member=WORLD, serial=serial, code=code, sentence=sentence)


def test_it_has_ended_when_all_have_and_the_one_that_failed_says_why() -> None:
    over, _, told = fleet("a", "b")
    over.happened("a", ended(0))
    over.happened("a", ended(0))
    assert told == []
    over.happened("b", ended(1, "rank 3 failed"))
    assert told == [ended(1, "rank 3 failed")]


def test_one_that_ended_before_the_other_s_node_was_lost_is_not_waited_for() -> None:
    over, state, told = fleet("a", "b")
    over.happened("a", ended(143))
    state.members[WORLD].nodes = ("a",)
    over.node_gone()
    assert told == [ended(143)]
    over.node_gone()
    assert told == [ended(143)]


def test_an_earlier_launcher_s_end_is_passed_on_as_it_is() -> None:
    over, _, told = fleet("a", "b")
    over.happened("a", ended(1, serial=0))
    assert told == [ended(1, serial=0)], "the core knows that it is void"


def test_nodes_of_a_member_meet_at_the_first() -> None:
    over, _, _ = fleet("a", "b")
    start = StartMember(member=WORLD, serial=1, nodes=("a", "b"))
    first, second = over.order(start, "a").meets, over.order(start, "b").meets
    assert first is not None and second is not None
    assert (first.address, first.port) == (second.address, second.port) and (first.place, second.place) == (0, 1)
    assert over.order(StartMember(member=WORLD, serial=1, nodes=("b",)), "b").meets is None
