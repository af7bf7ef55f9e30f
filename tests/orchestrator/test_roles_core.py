"""What a job of several roles does when something happens to one of its members."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from role_story import TRAINER, Story, acts, finish, role, rollout, started, stopped

from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.state import UP, JobState
from robust_run.orchestrator.model.words import (
    Action,
    Asked,
    Begun,
    Changed,
    Event,
    Finish,
    NodeGone,
    NodeOffered,
    RankEnded,
    RankGone,
    RankReady,
    SayLine,
    StartMember,
    StopMember,
    Tick,
    WakeAt,
    WorldEnded,
    WorldFailed,
    WorldRuns,
)
from robust_run.orchestrator.rules.core import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S, replay

# Starting.


def test_a_role_is_started_once_what_it_depends_on_is_ready() -> None:
    story = Story(role("reward", ready="called", nproc=2), role("trainer", depends_on=("reward",)))
    reward = MemberName("reward", 0)
    assert started(story.did) == ["reward/0"]
    assert started(story.runs(reward)) == []
    assert started(story.ready(reward, rank=0)) == []
    assert started(story.ready(reward, rank=1)) == ["trainer/0"]


def test_fewer_members_suffice_where_the_role_says_so() -> None:
    story = Story(role("rollout", members=3, fewest=2), role("trainer", depends_on=("rollout",)))
    story.runs(rollout(0))
    assert started(story.runs(rollout(1))) == ["trainer/0"]


def test_what_has_done_its_work_is_as_good_as_ready() -> None:
    story = Story(role("prepare"), role("trainer", depends_on=("prepare",)))
    story.runs(MemberName("prepare", 0))
    assert started(story.did) == ["prepare/0", "trainer/0"]
    story = Story(role("prepare", ready="called"), role("trainer", depends_on=("prepare",)))
    story.runs(MemberName("prepare", 0))
    assert started(story.ends(MemberName("prepare", 0), 0)) == ["trainer/0"]


def test_a_role_that_is_not_ready_any_more_ends_nobody() -> None:
    story = Story(role("reward"), role("trainer", depends_on=("reward",)))
    story.runs(MemberName("reward", 0))
    story.runs(TRAINER)
    failed = WorldFailed(member=MemberName("reward", 0), serial=1, attempt=0, sentence="rank 0 exited")
    assert acts(story.tell(failed)) == []
    assert story.standing(TRAINER) == "running"


def test_who_finds_no_room_waits_and_is_named_once() -> None:
    story = Story(role("trainer", nproc=2), role("rollout", members=2, nproc=2), slots=5)
    assert started(story.did) == ["trainer/0", "rollout/0"]
    assert [a.text for a in story.did if isinstance(a, SayLine)] == [
        "rollout/1 waits for room for 2 workers on 1 node: others use it"
    ]
    assert story.tell(Tick(), Tick()) == []
    story.runs(TRAINER, rollout(0))
    assert started(story.ends(rollout(0), 0)) == ["rollout/1"]


# Healthy members are left alone.


def test_an_idle_or_slow_member_is_never_acted_on() -> None:
    story = Story(role("trainer", ready="called"), role("rollout", members=2, ready="called"))
    story.runs(TRAINER, rollout(0))
    for _ in range(100):
        assert story.tell(Tick(), after_s=3600.0) == []
    assert story.standing(rollout(1)) == "starting", "a start may take for ever"
    assert acts(story.ready(TRAINER)) == []


def test_a_connection_that_is_lost_is_no_end() -> None:
    story = Story(role("trainer", ready="called"))
    story.runs(TRAINER)
    story.ready(TRAINER)
    gone = RankGone(member=TRAINER, serial=1, rank=0, attempt=0)
    assert story.tell(gone) == [Changed(member=TRAINER)]
    assert story.standing(TRAINER) == "running"
    assert not story.state.members[TRAINER].is_ready
    story.ready(TRAINER)
    assert story.state.members[TRAINER].is_ready, "it has come back"


def test_what_an_earlier_launcher_still_says_is_void() -> None:
    story = Story(role("rollout", members=2))
    story.runs(rollout(0), rollout(1))
    story.ends(rollout(0), 1)
    story.tell(Tick(), after_s=FIRST_PAUSE_S)
    assert story.serial(rollout(0)) == 2
    before = story.state.members[rollout(0)]
    for event in (
        WorldEnded(member=rollout(0), serial=1, code=1),
        WorldRuns(member=rollout(0), serial=1, attempt=7),
        WorldFailed(member=rollout(0), serial=1, attempt=7),
        RankReady(member=rollout(0), serial=1, rank=0, attempt=7),
        WorldEnded(member=rollout(9), serial=1, code=1),
    ):
        assert story.tell(event) == []
    assert story.state.members[rollout(0)] == before


def test_a_failure_of_an_earlier_attempt_that_is_told_late_takes_nothing_from_the_next() -> None:
    story = Story(role("rollout", members=2, ready="called"))
    story.runs(rollout(0))
    story.ready(rollout(0), attempt=1)  # its launcher's word comes later
    story.tell(WorldFailed(member=rollout(0), serial=1, attempt=0))
    story.runs(rollout(0), attempt=1)
    assert story.state.members[rollout(0)].is_ready
    assert story.state.members[rollout(0)].generation == 2
    story.tell(RankEnded(member=rollout(0), serial=1, rank=0, attempt=0))
    assert story.state.members[rollout(0)].is_ready


# Healing.


def test_a_member_that_is_alone_is_started_anew_and_nobody_else() -> None:
    story = Story(role("trainer"), role("rollout", members=2))
    story.runs(TRAINER, rollout(0), rollout(1))
    actions = story.ends(rollout(0), 1, why="rank 0 exited with code 1")
    assert acts(actions) == []
    assert WakeAt(at_s=FIRST_PAUSE_S) in actions
    assert started(story.tell(Tick(), after_s=FIRST_PAUSE_S / 2)) == []
    assert started(story.tell(Tick(), after_s=FIRST_PAUSE_S / 2)) == ["rollout/0"]
    story.runs(rollout(0))
    assert story.state.members[rollout(0)].generation == 2


def test_pauses_grow_with_failures_in_a_row_and_end() -> None:
    story = Story(role("trainer"), role("rollout", members=2, fewest=1, max_restarts=8))
    pauses = []
    while story.standing(rollout(0)) != "given_up":
        story.runs(rollout(0))
        pauses += [action.at_s - story.now_s for action in story.ends(rollout(0), 1) if isinstance(action, WakeAt)]
        story.tell(Tick(), after_s=LONGEST_PAUSE_S)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert story.state.phase == "going", "another of its role is left"


def test_a_member_that_ran_for_long_has_not_failed_in_a_row() -> None:
    story = Story(role("trainer"), role("rollout", members=2, max_restarts=1))
    for _ in range(20):
        story.runs(rollout(0))
        story.ends(rollout(0), 1, after_s=STEADY_S)
        assert started(story.tell(Tick(), after_s=FIRST_PAUSE_S)) == ["rollout/0"]


def test_too_few_members_end_the_job_with_the_reason() -> None:
    story = Story(role("trainer"), role("rollout", members=2, max_restarts=0))
    story.runs(TRAINER, rollout(0), rollout(1))
    assert stopped(story.ends(rollout(1), 3, why="no engine")) == ["trainer/0", "rollout/0"]
    story.ends(rollout(0), -15)
    found = finish(story.ends(TRAINER, -15))
    assert found is not None
    assert found.code == 3
    assert "rollout/1 ended with exit code 3: no engine; 1 of the 2 members that rollout needs" in found.sentence


def test_a_role_of_one_world_that_fails_ends_the_job_as_its_launcher_has_tried_already() -> None:
    story = Story(role("trainer"), role("rollout", members=2))
    story.runs(TRAINER, rollout(0), rollout(1))
    assert stopped(story.ends(TRAINER, 1)) == ["rollout/0", "rollout/1"]


def test_a_role_of_one_world_whose_launcher_was_killed_is_started_anew() -> None:
    story = Story(role("trainer"), role("rollout", members=2))
    story.runs(TRAINER, rollout(0), rollout(1))
    assert acts(story.ends(TRAINER, -9)) == []
    assert started(story.tell(Tick(), after_s=FIRST_PAUSE_S)) == ["trainer/0"]


def test_all_roles_begin_again_where_that_is_the_rule_once_nothing_runs() -> None:
    story = Story(role("trainer", restart="job"), role("rollout", members=2, fewest=1, most=3))
    story.runs(TRAINER, rollout(0), rollout(1))
    assert stopped(story.ends(TRAINER, 1)) == ["rollout/0", "rollout/1"]
    assert started(story.ends(rollout(0), 0)) == []
    assert started(story.ends(rollout(1), -15)) == ["trainer/0", "rollout/0", "rollout/1"]
    assert story.standing(rollout(2)) == "held"


def test_all_roles_begin_again_so_often_and_then_the_job_ends() -> None:
    for code in (1, -9):
        story = Story(role("trainer", restart="job", max_restarts=2), role("other"))
        for _ in range(2):
            story.runs(TRAINER, MemberName("other", 0))
            story.ends(TRAINER, code)
            story.ends(MemberName("other", 0), -15)
        story.runs(TRAINER, MemberName("other", 0))
        assert stopped(story.ends(TRAINER, code)) == ["other/0"]
        assert story.state.phase == "ending"
        assert finish(story.ends(MemberName("other", 0), -15)) is not None


def test_a_lost_node_takes_its_members_and_they_come_back_elsewhere() -> None:
    story = Story(role("rollout", members=2), slots=1)
    assert started(story.tell(NodeOffered(node="there", slots=1))) == ["rollout/1"]
    story.runs(rollout(0), rollout(1))
    assert acts(story.tell(NodeGone(node="there", why="no word for 30 s"))) == []
    story.tell(NodeOffered(node="new", slots=1))
    (start,) = acts(story.tell(Tick(), after_s=FIRST_PAUSE_S))
    assert isinstance(start, StartMember)
    assert (start.member, start.nodes, start.serial) == (rollout(1), ("new",), 2)
    assert story.tell(NodeGone(node="there"), WorldEnded(member=rollout(1), serial=1, code=0)) == []


def test_a_node_that_is_told_to_leave_is_no_failure_of_its_members() -> None:
    """However often: who drains one node after the other has not made the job fail."""
    story = Story(role("rollout", max_restarts=1), role("other", members=1), slots=2)
    for number in range(1, 6):
        story.runs(rollout(0), MemberName("other", 0))
        here, there = ("here", "there") if number % 2 else ("there", "here")
        story.tell(NodeOffered(node=there, slots=2))
        said = story.tell(NodeGone(node=here, why="it was told to leave", was_told=True))
        sentence = f"rollout/0: its node {here} is gone (it was told to leave); it is started anew"
        assert sentence in [each.text for each in said if isinstance(each, SayLine)]
        assert set(started(story.tell(Tick(), after_s=FIRST_PAUSE_S))) == {"rollout/0", "other/0"}
    assert story.state.members[rollout(0)].failed == 0


def test_nor_does_it_count_among_the_times_that_all_begin_again() -> None:
    story = Story(role("trainer", restart="job", max_restarts=1), slots=1)
    for _ in range(4):
        story.runs(TRAINER)
        story.tell(NodeOffered(node="there", slots=1))
        (node,) = story.state.members[TRAINER].nodes
        assert started(story.tell(NodeGone(node=node, was_told=True))) == ["trainer/0"]
        story.tell(NodeOffered(node=node, slots=1))
    story.runs(TRAINER)
    assert started(story.ends(TRAINER, 1)) == ["trainer/0"]
    story.runs(TRAINER)
    story.ends(TRAINER, 1)
    assert story.state.phase in ("ending", "over"), "its own failures count"


def test_of_a_member_on_two_nodes_the_rest_ends_before_it_begins_again() -> None:
    """Its other node still holds its workers, which wait for those that are gone."""
    story = Story(role("world", nodes=2), slots=1)
    story.tell(NodeOffered(node="there", slots=1), NodeOffered(node="new", slots=1))
    world = MemberName("world", 0)
    story.runs(world)
    gone, left = story.state.members[world].nodes
    lost = story.tell(NodeGone(node=gone))
    assert (stopped(lost), started(lost)) == (["world/0"], [])
    assert story.state.members[world].nodes == (left,)
    assert started(story.tell(Tick(), after_s=60.0)) == [], "not while it runs there"
    (start,) = [each for each in story.ends(world, 143) if isinstance(each, StartMember)]
    assert (start.serial, set(start.nodes)) == (2, {"here", "there", "new"} - {gone})
    assert story.state.phase == "going", "it has not failed"


# The end.


def test_the_job_is_done_when_the_role_that_says_so_is() -> None:
    story = Story(role("trainer", ends="job"), role("rollout", members=2))
    story.runs(TRAINER, rollout(0), rollout(1))
    assert stopped(story.ends(TRAINER, 0)) == ["rollout/0", "rollout/1"]
    story.ends(rollout(0), 1)
    assert finish(story.ends(rollout(1), -15)) == Finish(code=0, sentence="trainer is done")


def test_without_such_a_role_it_is_done_when_all_are_given_up_ones_apart() -> None:
    story = Story(role("trainer"), role("rollout", members=2, fewest=1, max_restarts=0))
    story.runs(TRAINER, rollout(0), rollout(1))
    story.ends(rollout(0), 1)
    story.ends(rollout(1), 0)
    assert finish(story.ends(TRAINER, 0)) == Finish(code=0, sentence="")


def test_asked_to_end_all_are_told_once_and_again_when_asked_again() -> None:
    story = Story(role("trainer"), role("rollout", members=2))
    story.runs(TRAINER)
    first = story.tell(Asked(what="stop", signal=2, by="SIGINT"))
    assert [(a.member.role, a.signal) for a in first if isinstance(a, StopMember)] == [
        ("trainer", 2),
        ("rollout", 2),
        ("rollout", 2),
    ]
    assert acts(story.runs(rollout(0))) == []
    assert not story.state.members[rollout(0)].is_ready, "who is told to end is not ready"
    assert len(stopped(story.tell(Asked(what="stop", signal=15)))) == 3
    story.ends(TRAINER, 0)
    story.ends(rollout(0), -2)
    assert finish(story.ends(rollout(1), 1)) == Finish(code=130, sentence="SIGINT asked for it")
    assert story.tell(Asked(what="stop"), Tick()) == []


def test_asked_to_end_before_or_between_starts_it_ends_at_once() -> None:
    story = Story(role("trainer"), role("rollout", members=2))
    story.state = JobState()
    assert finish(story.tell(Asked(what="stop", signal=15))) is not None
    story = Story(role("trainer"))
    story.ends(TRAINER, -9)
    assert story.standing(TRAINER) == "pausing"
    assert finish(story.tell(Asked(what="stop", signal=15))) is not None


# Scaling.


def test_a_role_shrinks_and_grows_within_its_limits() -> None:
    story = Story(role("trainer"), role("rollout", members=2, fewest=1, most=4))
    story.runs(TRAINER, rollout(0), rollout(1))
    assert story.standing(rollout(2)) == "held", "who is not wanted is not waited for"
    assert started(story.tell(Asked(what="scale", role="rollout", members=99, by="root"))) == ["rollout/2", "rollout/3"]
    story.runs(rollout(2), rollout(3))
    assert stopped(story.tell(Asked(what="scale", role="rollout", members=0))) == [
        "rollout/1",
        "rollout/2",
        "rollout/3",
    ]
    assert started(story.tell(Asked(what="scale", role="rollout", members=2))) == [], "it still ends"
    assert started(story.ends(rollout(1), 0)) == ["rollout/1"], "told to end, it ended well, and is wanted again"
    story.ends(rollout(2), 0)
    story.ends(rollout(3), -15)
    assert (story.standing(rollout(2)), story.standing(rollout(3))) == ("held", "held")
    assert story.tell(Asked(what="scale", role="nobody", members=2)) == []


def test_scaling_does_not_shorten_a_pause() -> None:
    story = Story(role("trainer"), role("rollout", members=2, fewest=1, most=4))
    story.ends(rollout(0), 1)
    assert started(story.tell(Asked(what="scale", role="rollout", members=3))) == ["rollout/2"]
    story.tell(Asked(what="scale", role="rollout", members=1))
    assert story.standing(rollout(0)) == "pausing"


def test_scaled_while_all_begin_again_it_begins_with_so_many() -> None:
    story = Story(role("trainer", restart="job"), role("rollout", members=2, fewest=1, most=4))
    story.runs(TRAINER, rollout(0), rollout(1))
    story.ends(TRAINER, 1)
    assert acts(story.tell(Asked(what="scale", role="rollout", members=1))) == []
    story.ends(rollout(0), 0)
    assert started(story.ends(rollout(1), 0)) == ["trainer/0", "rollout/0"]


# Whatever happens.

_members = st.sampled_from([TRAINER, rollout(0), rollout(1), rollout(2), MemberName("reward", 0)])
_serials, _small = st.integers(0, 3), st.integers(0, 2)
_events = st.one_of(
    st.builds(WorldRuns, member=_members, serial=_serials, attempt=_small),
    st.builds(WorldFailed, member=_members, serial=_serials, attempt=_small),
    st.builds(WorldEnded, member=_members, serial=_serials, code=st.sampled_from((0, 1, -9, -15))),
    st.builds(RankReady, member=_members, serial=_serials, rank=_small, attempt=_small),
    st.builds(RankGone, member=_members, serial=_serials, rank=_small, attempt=_small),
    st.builds(RankEnded, member=_members, serial=_serials, rank=_small, attempt=_small),
    st.builds(
        Asked, what=st.just("scale"), role=st.sampled_from(("rollout", "trainer", "x")), members=st.integers(-1, 5)
    ),
    st.builds(NodeGone, node=st.sampled_from(("here", "there"))),
    st.builds(NodeOffered, node=st.sampled_from(("here", "there")), slots=st.integers(1, 5), devices=st.integers(0, 4)),
    st.just(Tick()),
    st.just(Begun()),
)


@given(
    restart=st.sampled_from(("together", "job")),
    ends=st.sampled_from(("job", "role")),
    events=st.lists(st.tuples(_events, st.sampled_from((0.0, 0.5, 70.0, 700.0))), max_size=80),
)
def test_whatever_happens_a_member_has_one_launcher_and_a_job_that_is_asked_to_end_ends(
    restart: Any, ends: Any, events: list[tuple[Event, float]]
) -> None:
    story = Story(
        role("reward", ready="called"),
        role("rollout", members=2, fewest=1, most=3, depends_on=("reward",), max_restarts=2, devices=1),
        role("trainer", restart=restart, ends=ends, max_restarts=1),
        slots=4,
        devices=3,
    )
    up: dict[MemberName, int] = {}
    serials: dict[MemberName, int] = {}

    def follow(event: Event, actions: list[Action]) -> None:
        if isinstance(event, WorldEnded) and up.get(event.member) == event.serial:
            del up[event.member]
        if isinstance(event, NodeGone):
            gone = [name for name in up if story.state.members[name].standing not in UP]
            for name in gone:
                del up[name]
        for action in actions:
            if isinstance(action, StartMember):
                assert action.member not in up, "it runs already"
                assert action.serial > serials.get(action.member, 0)
                assert story.state.phase == "going"
                up[action.member] = serials[action.member] = action.serial
            elif isinstance(action, StopMember):
                assert up[action.member] == action.serial
            elif isinstance(action, Finish):
                assert not up, "something still runs"

    follow(Begun(), story.did)
    for event, after_s in events:
        follow(event, story.tell(event, after_s=after_s))
        assert up == {n: m.serial for n, m in story.state.members.items() if m.standing in UP}
        for node in story.state.nodes.values():
            assert node.free >= 0
            used = [device for devices in node.devices_used.values() for device in devices]
            assert len(set(used)) == len(used) <= max(node.devices, 0)
            assert set(node.used) <= set(up)
        assert not any(m.is_ready for m in story.state.members.values() if m.standing != "running")
    follow(Tick(), story.tell(Asked(what="stop", signal=15)))
    for name, serial in list(up.items()):
        event = WorldEnded(member=name, serial=serial, code=-15)
        follow(event, story.tell(event))
    assert story.state.phase == "over"
    assert len([action for action in story.did if isinstance(action, Finish)]) == 1
    assert replay(story.spec, story.told) == story.state
