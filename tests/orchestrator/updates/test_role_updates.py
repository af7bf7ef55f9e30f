"""How a version of a role's code reaches its members: one after the other, and back when it is bad."""

from __future__ import annotations

from typing import Any

import pytest
from role_story import Story, role, rollout, started, stopped

from robust_run.launcher.model.code_events import CodeVersion
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.update_words import (
    CodeFate,
    CodeSeen,
    Fate,
    TakeBackAsked,
    UpdateAsked,
    UpdateMember,
)
from robust_run.orchestrator.model.words import Action, Asked, NodeGone, NodeOffered, SayLine, Tick
from robust_run.orchestrator.rules.core import replay
from robust_run.orchestrator.rules.update_questions import code_words, under_way
from robust_run.orchestrator.rules.update_rules import PROOF_S, SETTLE_S

FIRST = CodeVersion(number=1, tree="a" * 64, summary="as the job was started")


def second(number: int = 2, parent: int = 1, **more: Any) -> CodeVersion:
    """Return the version after another."""
    return CodeVersion(number=number, tree=f"{number}" * 64, parents=(parent,), summary="x.py +1", **more)


def running(members: int = 3, **more: Any) -> Story:
    """Return a job whose rollouts all run the first version."""
    story = Story(role("rollout", members=members, **{"most": members + 1, "fewest": 1, **more}))
    for index in range(members):
        story.runs(rollout(index))
        story.tell(CodeSeen(member=rollout(index), serial=1, version=FIRST))
    return story


def ordered(actions: list[Action]) -> list[tuple[str, int, bool]]:
    """Return who was told to put which version in place, and whether at once."""
    return [(str(a.member), a.version.number, a.now) for a in actions if isinstance(a, UpdateMember)]


def fate(story: Story, index: int, what: Fate, number: int = 2, why: str = "") -> list[Action]:
    """A launcher says what became of a version; where it runs, its workers have begun anew."""
    name = rollout(index)
    event = CodeFate(member=name, serial=story.serial(name), number=number, fate=what, why=why)
    found = story.tell(event)
    if what in ("probation", "rolled_back"):
        found += story.runs(name, attempt=story.state.members[name].attempt + 1)
    return found


def ask(story: Story, version: CodeVersion | None = None, *, now: bool = True, due_s: float = 0.0) -> list[Action]:
    """Somebody updates the role."""
    return story.tell(UpdateAsked(role="rollout", version=version or second(), now=now, due_s=due_s))


def rolls(story: Story, members: int, what: Fate = "trusted") -> None:
    """All members are put on the second version, one after the other."""
    for index in range(members):
        fate(story, index, "probation")
        fate(story, index, what)
        story.tell(Tick(), after_s=SETTLE_S)


def start_versions(actions: list[Action]) -> dict[str, int]:
    """Return with which version members were started; 0: with what lies in the folder."""
    return {str(a.member): a.code.number if a.code else 0 for a in actions if hasattr(a, "devices")}


# One after the other.


def test_the_next_member_has_its_turn_when_the_one_before_is_ready_and_has_lived_for_a_while() -> None:
    story = running()
    assert ordered(ask(story)) == [("rollout/0", 2, True)]
    assert ordered(fate(story, 0, "pending")) == []
    assert ordered(fate(story, 0, "probation")) == []
    assert ordered(story.tell(Tick(), after_s=SETTLE_S - 1)) == []
    assert ordered(story.tell(Tick(), after_s=1)) == [("rollout/1", 2, True)]
    fate(story, 1, "probation")
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [("rollout/2", 2, True)]


def test_one_that_is_not_ready_again_holds_up_the_others_for_as_long_as_it_takes() -> None:
    story = running(ready="called")
    for index in range(3):
        story.ready(rollout(index))
    ask(story)
    fate(story, 0, "probation")
    assert ordered(story.tell(Tick(), after_s=10_000)) == []
    assert ordered(story.ready(rollout(0), attempt=1)) == []
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [("rollout/1", 2, True)]


def test_the_role_does_not_fall_below_its_fewest() -> None:
    story = running(members=3, fewest=2)
    story.ends(rollout(2), -9)
    assert ordered(ask(story)) == [], "one is away already"
    assert start_versions(story.tell(Tick(), after_s=2)) == {"rollout/2": 2}, (
        "it begins with it: no other need be ended for it"
    )
    assert ordered(story.runs(rollout(2))) == []
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [("rollout/0", 2, True)]


def test_a_role_that_has_no_more_than_its_fewest_goes_on_one_by_one() -> None:
    story = running(members=2, fewest=2)
    assert ordered(ask(story)) == [("rollout/0", 2, True)]


def test_a_role_of_one_world_is_updated_as_one() -> None:
    story = Story(role("trainer"))
    trainer = MemberName("trainer", 0)
    story.runs(trainer)
    story.tell(CodeSeen(member=trainer, serial=1, version=FIRST))
    did = story.tell(UpdateAsked(role="trainer", version=second(), now=True))
    assert ordered(did) == [("trainer/0", 2, True)]


def test_only_the_role_that_was_asked_for_is_reached() -> None:
    story = Story(role("trainer"), role("rollout", members=2, fewest=1))
    for name in (MemberName("trainer", 0), rollout(0), rollout(1)):
        story.runs(name)
        story.tell(CodeSeen(member=name, serial=1, version=FIRST))
    assert ordered(ask(story)) == [("rollout/0", 2, True)]


def test_it_is_trusted_when_all_members_have_proven_it() -> None:
    story = running(members=2)
    ask(story)
    fate(story, 0, "probation")
    story.tell(Tick(), after_s=SETTLE_S)
    fate(story, 1, "probation")
    fate(story, 0, "trusted")
    assert code_words(story.state, "rollout") == "version 2 on probation, 2 of 2 members run it"
    did = fate(story, 1, "trusted")
    assert [a.text for a in did if isinstance(a, SayLine)] == [
        "rollout: version 2 (x.py +1) has proven itself at 2 members, and is trusted from now on"
    ]
    assert code_words(story.state, "rollout") == "version 2 trusted, 2 of 2 members run it"


def test_a_repeated_word_of_a_launcher_changes_nothing() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    story.tell(Tick(), after_s=SETTLE_S)
    event = CodeFate(member=rollout(0), serial=1, number=2, fate="probation")
    assert ordered(story.tell(event, event)) == []
    assert ordered(story.tell(CodeFate(member=rollout(0), serial=0, number=2, fate="rolled_back", why="old"))) == []
    assert story.state.codes["rollout"].ledger.running == 2


def test_a_worker_that_is_still_ending_is_not_ready_again() -> None:
    """To end may take long: it is connected, and its launcher says already that the other version runs."""
    story = running()
    ask(story)
    event = CodeFate(member=rollout(0), serial=1, number=2, fate="trusted", begins=True)
    assert ordered(story.tell(event)) == []
    assert ordered(story.tell(Tick(), after_s=3 * SETTLE_S)) == []
    assert ordered(story.runs(rollout(0), attempt=1)) == []
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [("rollout/1", 2, True)]


def test_one_that_runs_it_already_is_not_touched() -> None:
    story = running()
    ask(story)
    story.tell(CodeFate(member=rollout(0), serial=1, number=2, fate="trusted"))
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [("rollout/1", 2, True)]


# When they fail.


def test_without_now_each_takes_it_up_at_its_own_failure() -> None:
    story = running()
    assert ordered(ask(story, now=False)) == [(f"rollout/{index}", 2, False) for index in range(3)]
    for index in range(3):
        fate(story, index, "pending")
    fate(story, 1, "probation")
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [], "nobody else is touched"
    assert code_words(story.state, "rollout") == "version 2 on probation, 1 of 3 members run it"


def test_it_waits_for_failures_though_the_one_before_was_put_in_place_now_and_has_not_proven_itself() -> None:
    story = running(members=2)
    ask(story)
    rolls(story, 2, "probation")
    did = ask(story, second(3, 2), now=False)
    assert ordered(did) == [("rollout/0", 3, False), ("rollout/1", 3, False)], "nobody is ended for it"
    assert [a.text for a in did if isinstance(a, SayLine)] == [
        "rollout: version 3 (x.py +1), with version 2 (x.py +1) in it, is put in place where a member fails"
    ]
    assert ordered(story.tell(Tick(), after_s=100)) == []


def test_it_goes_with_the_one_before_while_that_is_being_put_in_place() -> None:
    story = running(members=2)
    ask(story)
    fate(story, 0, "probation")
    did = ask(story, second(3, 2), now=False)
    assert "one member after the other" in next(a.text for a in did if isinstance(a, SayLine))
    assert ordered(did) == [("rollout/0", 3, True)]


def test_when_its_time_has_come_those_that_have_not_failed_follow_one_by_one() -> None:
    story = running()
    ask(story, now=False, due_s=100.0)
    for index in range(3):
        fate(story, index, "pending")
    assert ordered(story.tell(Tick(), after_s=99.0)) == []
    assert ordered(story.tell(Tick(), after_s=1.0)) == [("rollout/0", 2, True)]


def test_what_was_staged_is_taken_back_from_those_that_did_not_try_it_when_the_first_fails_with_it() -> None:
    story = running()
    ask(story, now=False)
    for index in range(3):
        fate(story, index, "pending")
    fate(story, 1, "probation")
    did = fate(story, 1, "rolled_back", why="rank 0 exited with code 3")
    assert ordered(did) == [("rollout/0", 1, False), ("rollout/2", 1, False)]


# A bad one.


def test_a_bad_one_stops_at_the_first_and_the_others_keep_what_they_have() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    did = fate(story, 0, "rolled_back", why="rank 0 exited with code 3")
    assert any(
        "is rolled back to 1 (rollout/0: rank 0 exited with code 3)" in a.text for a in did if isinstance(a, SayLine)
    )
    assert ordered(did) == []
    assert ordered(story.tell(Tick(), after_s=10_000)) == []
    assert stopped(story.did) == []


def test_who_goes_back_does_so_one_after_the_other() -> None:
    story = running()
    ask(story)
    rolls(story, 3)
    assert story.state.codes["rollout"].ledger.trusted == 2
    did = story.tell(TakeBackAsked(role="rollout", why="taken back by ann"), Tick())
    assert ordered(did) == [("rollout/0", 1, True)]
    story.tell(CodeFate(member=rollout(0), serial=1, number=1, fate="pending", begins=True))
    story.tell(CodeFate(member=rollout(0), serial=1, number=1, fate="trusted", begins=True))
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == []
    story.runs(rollout(0), attempt=2)
    assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [("rollout/1", 1, True)]


def test_those_that_have_a_bad_one_go_back_one_after_the_other() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    story.tell(Tick(), after_s=SETTLE_S)
    fate(story, 1, "probation")
    did = fate(story, 1, "rolled_back", why="a hang")
    assert ordered(did) == [("rollout/0", 1, True)], "the other is ready again, and two are left"
    fate(story, 0, "probation", number=1)
    assert ordered(story.tell(Tick(), after_s=10_000)) == []


def test_a_member_that_cannot_have_it_stops_it() -> None:
    story = running()
    ask(story)
    fate(story, 0, "refused", why="this job runs in place")
    assert story.state.codes["rollout"].ledger.records[1].fate == "rolled_back"
    assert ordered(story.tell(Tick(), after_s=100)) == []


def test_a_launcher_that_gives_up_with_it_has_failed_by_it() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    story.ends(rollout(0), 3, why="rank 0 exited with code 3")
    assert story.state.codes["rollout"].ledger.running == 1
    assert start_versions(story.tell(Tick(), after_s=2)) == {"rollout/0": 1}


@pytest.mark.parametrize("code", [-9, -15])
def test_a_launcher_that_was_killed_has_not(code: int) -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    story.ends(rollout(0), code)
    assert story.state.codes["rollout"].ledger.running == 2


def test_a_lost_node_is_no_fault_of_a_version() -> None:
    story = running(members=2)
    story.tell(NodeOffered(node="there", slots=8))
    ask(story)
    fate(story, 0, "probation")
    story.tell(NodeGone(node="here"))
    assert story.state.codes["rollout"].ledger.running == 2


def test_a_trusted_one_is_not_rolled_back_by_a_later_failure() -> None:
    story = running(members=1)
    ask(story)
    fate(story, 0, "probation")
    fate(story, 0, "trusted")
    story.ends(rollout(0), 3)
    assert story.state.codes["rollout"].ledger.running == 2


def test_somebody_takes_it_back() -> None:
    story = running(members=2)
    ask(story)
    fate(story, 0, "probation")
    story.tell(Tick(), after_s=SETTLE_S)
    did = story.tell(TakeBackAsked(role="rollout", why="taken back by ann"))
    assert story.state.codes["rollout"].ledger.running == 1
    assert ordered(did) == [("rollout/0", 1, True)]


# Who is started later.


def test_who_is_started_first_takes_what_lies_in_the_folder() -> None:
    assert set(start_versions(running().did).values()) == {0}


def test_who_is_added_later_has_what_the_role_runs_and_not_what_lies_in_the_folder_now() -> None:
    story = running()
    assert start_versions(story.tell(Asked(what="scale", role="rollout", members=4))) == {"rollout/3": 1}
    story = running()
    ask(story)
    rolls(story, 3)
    assert start_versions(story.tell(Asked(what="scale", role="rollout", members=4))) == {"rollout/3": 2}


def test_who_is_added_while_one_tries_it_has_the_one_before_and_follows_in_its_turn() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    assert start_versions(story.tell(Asked(what="scale", role="rollout", members=4))) == {"rollout/3": 1}
    story.runs(rollout(3))
    for index in (1, 2, 3):
        assert ordered(story.tell(Tick(), after_s=SETTLE_S)) == [(f"rollout/{index}", 2, True)]
        fate(story, index, "probation")


def test_who_is_started_anew_takes_up_what_waits_for_a_failure_and_proves_it_by_living() -> None:
    story = running(members=1, most=1)
    ask(story, now=False)
    story.ends(rollout(0), -9)
    assert start_versions(story.tell(Tick(), after_s=2)) == {"rollout/0": 2}
    story.runs(rollout(0))
    assert story.state.codes["rollout"].ledger.trusted == 1
    story.tell(Tick(), after_s=PROOF_S)
    assert story.state.codes["rollout"].ledger.trusted == 2


def test_a_lost_node_s_members_begin_elsewhere_with_what_the_role_runs() -> None:
    story = running(members=2)
    ask(story)
    rolls(story, 2)
    story.tell(NodeOffered(node="there", slots=8))
    story.tell(NodeGone(node="here"))
    assert start_versions(story.tell(Tick(), after_s=2)) == {"rollout/0": 2, "rollout/1": 2}


def test_who_has_captured_something_else_is_put_on_the_version_with_the_others() -> None:
    story = Story(role("rollout", members=2, fewest=1))
    for index, tree in enumerate("ab"):
        story.runs(rollout(index))
        version = CodeVersion(number=1, tree=tree * 64)
        story.tell(CodeSeen(member=rollout(index), serial=1, version=version))
    assert [story.state.members[rollout(index)].version for index in range(2)] == [1, 0]


def test_what_a_launcher_said_at_its_start_is_read_again_by_a_new_leader_and_is_old_then() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    did = story.tell(CodeSeen(member=rollout(0), serial=1, version=FIRST))
    assert story.state.members[rollout(0)].version == 2
    assert did == []


def test_a_launcher_that_could_not_be_given_its_version_is_named_and_is_put_on_it_in_its_turn() -> None:
    story = running()
    did = story.tell(Asked(what="scale", role="rollout", members=4))
    assert start_versions(did) == {"rollout/3": 1}
    did = story.tell(CodeSeen(member=rollout(3), serial=1, version=CodeVersion(number=1, tree="")))
    assert [a.text for a in did if isinstance(a, SayLine)] == [
        "rollout/3 could not be given version 1 of its code: it runs what lies in the folder"
    ]
    assert story.state.members[rollout(3)].version == 0


# All roles begin again, where that is the rule.


def test_a_role_whose_failure_is_everybody_s_is_updated_by_beginning_again() -> None:
    story = Story(role("trainer", restart="job"), role("rollout", members=2, fewest=1))
    trainer = MemberName("trainer", 0)
    for name in (trainer, rollout(0), rollout(1)):
        story.runs(name)
        story.tell(CodeSeen(member=name, serial=1, version=FIRST))
    did = story.tell(UpdateAsked(role="trainer", version=second(), now=True))
    assert stopped(did) == ["trainer/0", "rollout/0", "rollout/1"]
    for name in (trainer, rollout(0), rollout(1)):
        did = story.ends(name, -15)
    assert start_versions(did) == {"trainer/0": 2, "rollout/0": 1, "rollout/1": 1}
    assert story.state.job_restarts == 0
    story.runs(trainer)
    did = story.ends(trainer, 3)
    assert story.state.codes["trainer"].ledger.running == 1, "it failed with it"


# A leader that is killed.


def test_a_leader_that_is_started_again_knows_where_it_was() -> None:
    story = running()
    ask(story)
    fate(story, 0, "probation")
    story.tell(Tick(), after_s=SETTLE_S)
    again = replay(story.spec, story.told)
    assert again == story.state
    assert [(str(each.member), each.version.number, each.now) for each in under_way(again)] == [
        ("rollout/0", 2, True),
        ("rollout/1", 2, True),
    ]


def test_what_cannot_be_staged_changes_nothing() -> None:
    story = running()
    assert ordered(ask(story, second(number=5))) == []
    assert ordered(story.tell(UpdateAsked(role="nobody", version=second(), now=True))) == []
    assert started(story.tell(TakeBackAsked(role="nobody"), TakeBackAsked(role="rollout"))) == []
