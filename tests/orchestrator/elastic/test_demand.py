"""When a role of `scale = "demand"` is given a member more or less; above all, when it is not."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from role_story import TRAINER, Story, role, rollout, started, stopped

from robust_run.launcher.model.code_events import CodeVersion
from robust_run.orchestrator.model.demand_words import Measured, MemberDemand
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.update_words import CodeSeen, UpdateAsked
from robust_run.orchestrator.model.words import Action, Asked, RankReady, SayLine, WorldFailed
from robust_run.orchestrator.rules.core import replay
from robust_run.orchestrator.rules.elastic.demand import window_s


@dataclasses.dataclass
class Share:
    """What one member does in a window."""

    items: float = 0.0
    """It waits for prompts, or, the trainer, for samples."""
    room: float = 0.0
    took: int = 1
    put: int = 1
    is_whole: bool = True
    has_put: bool = True


class Life:
    """A job of a trainer, which makes prompts and takes samples, and of rollouts, which do the reverse; window by window."""

    def __init__(self, members: int = 4, fewest: int = 2, most: int = 8, devices: int = 0, **more: Any) -> None:
        each = 1 if devices else 0
        self.story = Story(
            role("trainer", devices=each),
            role("rollout", members=members, fewest=fewest, most=most, scale="demand", devices=each, **more),
            devices=devices,
        )
        self.window_s = window_s(self.story.spec)
        self.rollouts: Callable[[int], Share] = lambda _: Share()
        self.trainer = Share()
        self.waiting = 0
        self.settle()

    def settle(self) -> None:
        """All who were started run, and are ready; all who were told to end have ended."""
        for name, member in list(self.story.state.members.items()):
            if member.standing == "starting":
                self.story.runs(name)
            elif member.standing == "stopping":
                self.story.ends(name, -15)

    @property
    def wanted(self) -> int:
        return self.story.state.wanted["rollout"]

    def measured(self) -> Measured:
        """Return the window that has just passed."""
        members = {"trainer/0": _demand(self.trainer, "samples", "prompts")}
        for member in self.story.state.of("rollout"):
            if member.standing == "running":
                members[str(member.name)] = _demand(self.rollouts(member.name.index), "prompts", "samples")
        return Measured(members=members, waiting={"samples": self.waiting}, length_s=self.window_s)

    def goes_on(self, windows: int, *, settles: bool = True, **changed: Any) -> list[Action]:
        """Let windows pass; return what was done."""
        did: list[Action] = []
        for _ in range(windows):
            event = msgspec.structs.replace(self.measured(), **changed)
            did += self.story.tell(event, after_s=self.window_s)
            if settles:
                self.settle()
        return did

    def idle(self, share: float = 0.6) -> None:
        """Rollouts wait for prompts, and nobody waits for them."""
        self.rollouts, self.trainer, self.waiting = lambda _: Share(items=share), Share(), 3

    def short(self, share: float = 0.5) -> None:
        """The trainer waits for samples, and rollouts have all to do."""
        self.rollouts, self.trainer, self.waiting = lambda _: Share(), Share(items=share), 0


def _demand(share: Share, takes: str, puts: str) -> MemberDemand:
    return MemberDemand(
        idle=min(share.items + share.room, 1.0),
        waits={takes: share.items} if share.items else {},
        blocked={puts: share.room} if share.room else {},
        took={takes: share.took} if share.took else {},
        put={puts: share.put} if share.put else {},
        has_put=share.has_put,
        is_whole=share.is_whole,
    )


def said(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, SayLine)]


# What it does.


def test_a_role_that_is_idle_for_long_gives_back_its_last_member_in_good_order_and_says_why() -> None:
    life = Life()
    life.idle()
    assert stopped(life.goes_on(19)) == []
    did = life.goes_on(1)
    assert stopped(did) == ["rollout/3"]
    assert said(did) == [
        "rollout is to have 3 members, not 4: for 10 min its members waited at queues for 60% of their time,"
        " and nobody waited for them"
    ]
    assert life.story.state.needs["rollout"].acts == tuple(said(did))


def test_a_role_whose_consumers_wait_at_its_empty_queue_gets_one_more_and_says_why() -> None:
    life = Life()
    life.short()
    assert started(life.goes_on(19)) == []
    did = life.goes_on(1)
    assert started(did) == ["rollout/4"]
    assert said(did) == [
        "rollout is to have 5 members, not 4: for 10 min trainer waited for items of samples for 50% of its time,"
        " and rollout did not wait"
    ]


def test_one_at_a_time_and_then_nothing_until_it_was_measured_anew() -> None:
    life = Life()
    life.short()
    life.goes_on(20)
    assert life.wanted == 5
    life.goes_on(39)
    assert life.wanted == 5, "the new one warms up; then it is measured for as long"
    life.goes_on(2)
    assert life.wanted == 6


def test_never_below_fewest_and_never_above_most() -> None:
    life = Life(members=3)
    life.idle(0.9)
    life.goes_on(300)
    assert life.wanted == 2
    life = Life(members=7)
    life.short()
    life.goes_on(300)
    assert life.wanted == 8


def test_those_who_were_given_up_do_not_count_among_the_fewest() -> None:
    life = Life(members=3, max_restarts=0)
    life.story.ends(rollout(0), 3)
    life.idle(0.9)
    life.goes_on(100)
    assert life.wanted == 3


def test_without_the_key_nothing_happens() -> None:
    life = Life()
    life.story.spec = RolesSpec(
        name="job", roles=tuple(msgspec.structs.replace(each, scale="asked") for each in life.story.spec.roles)
    )
    life.idle(0.9)
    life.goes_on(100)
    life.short()
    life.goes_on(100)
    assert life.wanted == 4


def test_what_was_done_is_on_record_and_a_leader_that_is_started_again_goes_on_from_it() -> None:
    life = Life()
    life.idle()
    life.goes_on(30)
    assert replay(life.story.spec, life.story.told) == life.story.state


# What it does not do.


def test_a_role_that_works_and_is_not_waited_for_stays_as_it_is() -> None:
    life = Life()
    life.waiting = 5
    life.goes_on(200)
    assert life.wanted == 4


def test_warming_up_looks_like_a_lack_and_is_none() -> None:
    """Engines load for an hour: they have put nothing yet, and their consumers wait."""
    life = Life()
    life.rollouts, life.trainer = lambda _: Share(took=0, put=0, has_put=False), Share(items=1.0, took=0)
    life.goes_on(120)
    life.rollouts = lambda index: Share() if index == 0 else Share(put=0, has_put=False)
    life.trainer = Share(items=0.9)
    life.goes_on(120)
    assert life.wanted == 4


def test_warming_up_looks_like_idleness_and_is_none() -> None:
    """A member that was started in the window, or is not ready, says nothing of the role."""
    life = Life()
    life.idle()
    life.rollouts = lambda index: Share(items=0.9, is_whole=index != 2)
    life.goes_on(100)
    assert life.wanted == 4
    life = Life(ready="called")
    life.idle()
    life.goes_on(100)
    assert life.wanted == 4
    for index in range(4):
        life.story.ready(rollout(index))
    life.goes_on(20)
    assert life.wanted == 3


@pytest.mark.parametrize("moves", [(0, 1), (1, 0), (0, 0)])
def test_a_trainer_that_saves_looks_like_no_demand(moves: tuple[int, int]) -> None:
    """Nothing moves at the queues for an hour: it saves, evaluates, recovers."""
    life = Life()
    life.rollouts, life.waiting = lambda _: Share(items=1.0, took=0, put=0), 9
    life.trainer = Share(took=moves[0], put=moves[1])
    life.goes_on(120)
    life.rollouts = lambda _: Share(room=1.0, took=0, put=0)
    life.goes_on(120)
    assert life.wanted == 4


def test_a_trainer_that_was_started_again_looks_like_no_demand() -> None:
    life = Life()
    life.idle()
    for _ in range(10):
        life.goes_on(10)
        life.trainer = Share(is_whole=False)
        life.story.tell(WorldFailed(member=TRAINER, serial=1, attempt=0))
        life.goes_on(1)
        life.story.runs(TRAINER, attempt=life.story.state.members[TRAINER].attempt + 1)
        life.trainer = Share()
    assert life.wanted == 4


def test_roles_that_take_turns_have_neither_too_many_nor_too_few() -> None:
    """Synchronous training: each waits while the other works."""
    life = Life()
    life.rollouts, life.trainer, life.waiting = lambda _: Share(items=0.6), Share(items=0.4), 0
    life.goes_on(200)
    assert life.wanted == 4


def test_a_lost_window_begins_the_count_anew() -> None:
    life = Life()
    life.idle()
    life.goes_on(15)
    life.goes_on(1, length_s=2 * life.window_s + 1)
    life.goes_on(15)
    assert life.wanted == 4
    life.goes_on(1, length_s=0.0)
    life.goes_on(19)
    assert life.wanted == 4


def test_what_comes_and_goes_is_no_need() -> None:
    life = Life()
    for _ in range(20):
        life.idle(0.9)
        life.goes_on(18)
        life.short()
        life.goes_on(18)
    assert life.wanted == 4


@pytest.mark.parametrize("work", [1.0, 2.2, 2.9, 3.1, 5.5])
def test_it_comes_to_rest_and_does_not_swing(work: float) -> None:
    """`work` members' worth of work: more than that wait for prompts, fewer are waited for."""
    life = Life(members=5, fewest=1)
    sizes = []
    for _ in range(300):
        count = life.wanted
        idle = max(1.0 - work / count, 0.0)
        life.rollouts = lambda _, idle=idle: Share(items=idle)  # type: ignore[misc]
        life.trainer = Share(items=max(1.0 - count / work, 0.0))
        life.waiting = 0 if count < work else 2
        life.goes_on(1)
        sizes.append(life.wanted)
    assert len(set(sizes[-100:])) == 1
    turns = [b - a for a, b in itertools.pairwise(sizes) if b != a]
    assert len({turn > 0 for turn in turns}) <= 1, "it never undoes what it did"


def test_items_that_take_longer_than_a_window_are_measured_all_the_same() -> None:
    life = Life()
    for _ in range(60):
        life.idle()
        life.goes_on(1)
        life.rollouts = lambda _: Share(items=0.6, took=0, put=0)
        life.trainer = Share(took=0, put=0)
        life.goes_on(1)
    assert life.wanted < 4


def test_a_long_stop_leaves_nothing_of_what_was_known_before() -> None:
    life = Life()
    life.idle()
    life.goes_on(19)
    life.rollouts = lambda _: Share(items=1.0, took=0, put=0)
    life.goes_on(60)
    life.idle()
    life.goes_on(19)
    assert life.wanted == 4


def test_a_starved_machine_gets_no_more_members() -> None:
    life = Life()
    life.short()
    life.goes_on(100, is_starved=True)
    assert life.wanted == 4


def test_where_there_is_no_room_nothing_is_asked_for() -> None:
    life = Life(members=3, fewest=1, devices=4)
    life.short()
    life.goes_on(100)
    assert life.wanted == 3
    assert [str(each.name) for each in life.story.state.of("rollout") if each.standing == "waits"] == []


def test_of_two_roles_that_want_the_same_room_one_has_it() -> None:
    story = Story(
        role("trainer", devices=1),
        role("a", members=1, fewest=1, most=4, restart="alone", scale="demand", devices=1),
        role("b", members=1, fewest=1, most=4, restart="alone", scale="demand", devices=1),
        devices=4,
    )
    for name in list(story.state.members):
        if story.state.members[name].standing == "starting":
            story.runs(name)
    members = {
        "trainer/0": MemberDemand(
            idle=1.0, waits={"x": 0.5, "y": 0.5}, took={"x": 1, "y": 1}, has_put=True, is_whole=True
        ),
        "a/0": MemberDemand(put={"x": 1}, has_put=True, is_whole=True),
        "b/0": MemberDemand(put={"y": 1}, has_put=True, is_whole=True),
    }
    for _ in range(200):
        story.tell(Measured(members=dict(members), length_s=30.0), after_s=30.0)
        for name, member in list(story.state.members.items()):
            if member.standing == "starting":
                story.runs(name)
                members[str(name)] = msgspec.structs.replace(members[f"{name.role}/0"])
    assert sorted(story.state.wanted.values()) == [1, 1, 2]
    assert all(member.standing != "waits" for member in story.state.members.values())


def test_a_member_that_waits_for_room_goes_before_a_role_that_grows() -> None:
    life = Life(members=4, fewest=1, devices=4)
    assert life.story.standing(rollout(3)) == "waits"
    life.short()
    life.goes_on(100)
    assert life.wanted == 4


def test_while_members_are_put_on_a_new_version_nothing_is_concluded() -> None:
    life = Life()
    for index in range(4):
        life.story.tell(CodeSeen(member=rollout(index), serial=1, version=CodeVersion(number=1, tree="a" * 64)))
    life.story.tell(UpdateAsked(role="rollout", version=CodeVersion(number=2, tree="b" * 64, parents=(1,)), now=True))
    life.idle(0.9)
    life.goes_on(100)
    assert life.wanted == 4


def test_what_a_person_asked_for_stands_until_it_was_measured_for_long() -> None:
    life = Life()
    life.idle()
    life.goes_on(19)
    life.story.tell(Asked(what="scale", role="rollout", members=6, by="ann"))
    life.settle()
    life.goes_on(39)
    assert life.wanted == 6


def test_a_role_that_uses_no_queue_is_left_alone() -> None:
    life = Life()
    life.rollouts = lambda _: Share(took=0, put=0, has_put=False)
    life.goes_on(200)
    assert life.wanted == 4


def test_nothing_is_done_while_the_job_ends() -> None:
    life = Life()
    life.idle()
    life.goes_on(19)
    life.story.tell(Asked(what="stop"))
    assert stopped(life.goes_on(5, settles=False)) == []


def test_ready_of_a_late_rank_is_no_measure() -> None:
    life = Life()
    life.story.tell(RankReady(member=MemberName("rollout", 9), serial=1, rank=0, attempt=0))
    life.goes_on(5)
    assert life.wanted == 4
