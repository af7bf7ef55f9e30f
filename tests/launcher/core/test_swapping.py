"""What fails again and again on one node runs once where that node is not: what must not follow from it, and what does."""

from __future__ import annotations

from typing import Any

import pytest
from stories import BUG, Story, evidence, incident_of, several_nodes, told_to_end

from robust_run.health.checks.types import CheckJudgement, SuspectNode
from robust_run.health.types import Finding
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import Finish, Say
from robust_run.launcher.model.check_events import Decided, Diagnosed, StandbyChecked
from robust_run.launcher.model.code_events import CodeCaptured, CodeVersion, StepsSurvived, UpdateStaged
from robust_run.launcher.model.events import SignalReceived, Tick
from robust_run.launcher.model.job import Progress

DEVICE = Finding(kind="accelerator", line="CUDA error: unspecified launch failure", trouble="cuda", exception="E")
SEGV, KILL = -11, -9


def job(*names: str, spare: int = 1, **policy: Any) -> Story:
    """Return the story of a job on these nodes, else two, with standbys."""
    story = several_nodes(*(names or ("a", "b")), **{"diagnose": "auto", "max_restarts": 3, **policy})
    for number in range(spare):
        story.joins(f"spare-{number}")
    return story


def fails(story: Story, rank: int, code: int = 1, finding: Finding | None = DEVICE, **more: Any) -> list[Any]:
    """A rank of the attempt that runs fails by itself; return what follows when all nodes have ended."""
    story.exits(rank, code, finding)
    last: list[Any] = []
    at_s = story.now_s
    for place in tuple(story.state.layout):
        ranks = range(place.first_rank, place.first_rank + place.nproc)
        ended = [
            evidence(each, code, at_s, finding=finding) if each == rank else told_to_end(each, at_s + 1)
            for each in ranks
        ]
        last = story.ends(place.node, *ended, **more)
    return last


def again(story: Story, rank: int, after_s: float = 10.0, **more: Any) -> list[Any]:
    """The next attempt runs, and a rank of it fails."""
    story.starts()
    story.now_s += after_s
    return fails(story, rank, **more)


def passes(story: Story, *bad: str) -> list[Any]:
    """The checks are over: these nodes are at fault for certain, nothing was found on the others."""
    suspects = tuple(
        SuspectNode(node=name, check="model", confidence="high", rule="odd_output", sentence=f"{name} is odd")
        for name in bad
    )
    passed = tuple(name for name in story.world if name not in bad)
    judged = CheckJudgement(suspects=suspects, passed=passed)
    return story.happens(Diagnosed(attempt=story.state.attempt, judgement=judged, at_unix_s=9.0), 5.0)


def rules(actions: list[Any]) -> list[str]:
    return [each.rule for each in actions if isinstance(each, Decided)]


def end_of(actions: list[Any]) -> Finish | None:
    return next((each for each in actions if isinstance(each, Finish)), None)


def same_after_replay(story: Story) -> None:
    """The journal leads to the same state."""
    again_ = replay(story.policy, story.told)
    assert (again_.ladder_state, again_.trail) == (story.state.ladder_state, story.state.trail)
    assert [m.aside for m in again_.members.values()] == [m.aside for m in story.state.members.values()]


# --- what must not happen -------------------------------------------------------------------------------------------


def test_no_node_is_set_aside_for_one_failure() -> None:
    story = job()
    assert rules(fails(story, 0, steps=5)) == [] and story.world == ["a", "b"]


def test_failures_that_are_hours_apart_are_not_the_same() -> None:
    story = job()
    fails(story, 0, steps=5)
    assert rules(again(story, 0, 7200.0, steps=9)) == [] and story.world == ["a", "b"]


def test_failures_on_different_nodes_set_none_aside_while_the_job_gets_on() -> None:
    story = job("a", "b", "c")
    for number, rank in enumerate((0, 2, 4)):
        (again if number else fails)(story, rank, steps=5 * (number + 1))
    assert story.world == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("code", "finding"),
    [(KILL, None), (1, BUG), (7, None), (1, Finding(kind="out_of_memory", line="OOM", trouble="host_memory"))],
    ids=["killed from outside", "the program's exception", "its own exit code", "memory"],
)
def test_what_a_machine_does_not_do_sets_no_node_aside(code: int, finding: Finding | None) -> None:
    story = job(max_restarts=2)
    actions = fails(story, 0, code=code, finding=finding)
    while end_of(actions) is None:
        actions = again(story, 0, code=code, finding=finding)
    assert not any(member.aside for member in story.state.members.values())


def test_without_an_idle_standby_it_ends_as_ever() -> None:
    story = job(spare=0)
    fails(story, 0)
    again(story, 0)
    passes(story)
    assert end_of(again(story, 0)) is not None


@pytest.mark.parametrize("policy", [{"diagnose": "never"}, {"max_evict_share": 0.0}, {"max_restarts": 0}])
def test_who_forbids_it_is_heard(policy: dict[str, Any]) -> None:
    story = job(**policy)
    actions = fails(story, 0)
    for _ in range(6):
        if end_of(actions) is not None:
            break
        actions = passes(story) if story.state.phase == "diagnosing" else again(story, 0)
    assert end_of(actions) is not None and story.world == ["a", "b"]


def test_a_new_version_of_the_code_is_the_first_suspect_and_no_node() -> None:
    story = job()
    story.happens(CodeCaptured(version=CodeVersion(number=1, tree="a" * 64, by="ann")))
    story.happens(UpdateStaged(version=CodeVersion(number=2, tree="b" * 64, parents=(1,), by="ann")))
    fails(story, 0, steps=5)
    assert rules(again(story, 0, steps=9)) == [] and story.world == ["a", "b"]


def test_a_bug_of_one_rank_ends_the_job_in_bounded_time_and_acquits_the_node() -> None:
    story = job(spare=3)
    fails(story, 0)
    again(story, 0)
    passes(story)
    assert rules(again(story, 0)) == ["swapped_to_test"]
    assert story.world == ["spare-0", "b"]
    actions = again(story, 0)
    end = end_of(actions)
    assert end is not None and story.world == ["spare-0", "b"], "one standby is used up, no second"
    assert "rank 0 failed on spare-0 as it had on a: it goes with the rank" in end.reason
    assert not any(member.aside for member in story.state.members.values()), "a is as good as any again"
    same_after_replay(story)


def test_a_bug_of_one_rank_that_lets_the_job_get_on_uses_up_one_standby() -> None:
    story = job(spare=3, max_restarts=9)
    fails(story, 0, steps=5)
    assert rules(again(story, 0, steps=9)) == ["swapped_to_test"]
    worlds = []
    for number in range(20):
        actions = again(story, 0, 300.0, steps=20 + number)
        assert end_of(actions) is None
        worlds.append(story.world)
    assert worlds == [["spare-0", "b"]] * 20


def test_a_bug_that_comes_on_other_ranks_each_time_ends_the_job_in_bounded_time() -> None:
    story = job("a", "b", "c", spare=9)
    actions, number = fails(story, 0), 0
    while end_of(actions) is None and number < 12:
        number += 1
        actions = passes(story) if story.state.phase == "diagnosing" else again(story, 2 * (number % 3))
    assert end_of(actions) is not None and number <= 6
    same_after_replay(story)


# --- what does ------------------------------------------------------------------------------------------------------


def test_a_node_that_fails_again_though_the_job_gets_on_is_set_aside_at_once() -> None:
    story = job()
    fails(story, 2, steps=5)
    actions = again(story, 2, steps=9)
    assert rules(actions) == ["swapped_to_test"] and incident_of(actions).action == "relaunch"
    assert story.world == ["a", "spare-0"] and not story.state.evicted
    assert any(isinstance(each, Say) and each.text.startswith("b is set aside: rank 2") for each in actions)
    story.starts()
    assert rules(fails(story, 0, code=KILL, finding=None, steps=50))[:1] == ["swap_helped"]
    same_after_replay(story)


def test_a_crash_that_stays_in_one_node_of_two_does_not_end_the_job_beside_an_idle_standby() -> None:
    story = job()
    fails(story, 2, code=SEGV, finding=None)
    again(story, 2, code=SEGV, finding=None)
    passes(story)
    assert rules(again(story, 2, code=SEGV, finding=None)) == ["swapped_to_test"]
    assert story.world == ["a", "spare-0"] and end_of(again(story, 0, code=KILL, finding=None, steps=9)) is None


def test_the_last_experiment_comes_when_max_restarts_is_spent() -> None:
    story = job(max_restarts=1)
    fails(story, 2, code=SEGV, finding=None)
    actions = again(story, 2, code=SEGV, finding=None)
    assert rules(actions) == ["swapped_to_test"] and story.world == ["a", "spare-0"]
    end = end_of(again(story, 2, code=SEGV, finding=None))
    assert end is not None and "--max-restarts" in end.reason and "it goes with the rank" in end.reason


def test_a_node_that_was_set_aside_is_used_last_and_let_go_first() -> None:
    story = job(spare=1)
    fails(story, 2, steps=5)
    again(story, 2, steps=9)
    story.starts()
    story.is_lost("spare-0")
    story.all_end()
    assert story.world == ["a", "b"], "better than none"
    story.starts()
    story.joins("late")
    fails(story, 0, code=KILL, finding=None, steps=50)
    assert story.world == ["a", "late"]


def test_a_node_that_was_set_aside_is_checked_as_a_standby_and_goes_if_it_is_at_fault() -> None:
    story = job()
    fails(story, 2, steps=5)
    again(story, 2, steps=9)
    assert story.state.members["b"].checked == ""
    story.starts()
    told = StandbyChecked(node="b", name="b", admitted=False, rule="odd_output", sentence="other bits", at_unix_s=5.0)
    story.happens(told)
    assert list(story.state.evicted) == ["b"]


def test_who_is_checked_while_the_job_is_told_to_end_is_not_evicted_for_it() -> None:
    story = job()
    story.starts()
    story.happens(SignalReceived(signal=15))
    said = StandbyChecked(
        node="spare-0", name="spare-0", admitted=False, rule="hung", sentence="it hung", at_unix_s=5.0
    )
    assert story.happens(said) == [] and not story.state.evicted


def test_an_operator_who_readmits_a_node_takes_it_back() -> None:
    story = job()
    fails(story, 2, steps=5)
    again(story, 2, steps=9)
    story.readmits("b")
    assert story.state.members["b"].aside == ""


# --- what is known to be a node's fault does not count ----------------------------------------------------------------


def test_restarts_that_a_node_brought_to_nothing_which_checks_convict_are_given_back() -> None:
    story = job("a", "b", "c", spare=4)
    fails(story, 2)
    again(story, 2)
    passes(story, "b")
    assert story.state.trail.fruitless == 0, "b was at fault, and is out"
    again(story, 4, code=KILL, finding=None)
    assert story.state.trail.fruitless == 1, "what failed elsewhere counts"
    same_after_replay(story)


def test_a_node_that_checks_convict_takes_no_failure_of_others_with_it() -> None:
    story = job("a", "b", "c", spare=4, max_restarts=9)
    fails(story, 4)
    again(story, 4)
    passes(story, "b")
    assert story.state.trail.fruitless == 2 and Progress() == story.state.progress


def test_code_that_has_proven_itself_is_not_rolled_back_before_the_node_that_fails_is_tested() -> None:
    story = job(max_restarts=9)
    story.happens(CodeCaptured(version=CodeVersion(number=1, tree="a" * 64, by="ann")))
    story.happens(UpdateStaged(version=CodeVersion(number=2, tree="b" * 64, parents=(1,), by="ann")))
    fails(story, 0, code=KILL, finding=None)
    story.starts()
    for name in ("a", "b"):
        story.happens(StepsSurvived(attempt=1, node=name, steps=20, step_s=0.1))
    fails(story, 2, steps=50)
    again(story, 2)
    passes(story)
    assert rules(again(story, 2)) == ["swapped_to_test"] and story.state.code.running == 2
    assert rules(again(story, 2)) == ["failed_again_rollback"], "it goes with the rank: then the code has its turn"


# --- a node's own disk ------------------------------------------------------------------------------------------------

FULL = Finding(
    kind="storage", line="OSError: [Errno 28] No space left on device", exception="OSError", trouble="storage"
)


def test_a_disk_that_is_full_on_one_node_is_not_waited_out() -> None:
    story = job("a", "b", "c")
    fails(story, 2, finding=FULL, steps=50)
    again(story, 2, finding=FULL, steps=0)
    story.happens(Tick(), 5.0)
    actions = again(story, 2, finding=FULL, steps=0)
    assert rules(actions) == ["swapped_to_test"] and story.world == ["a", "spare-0", "c"]
    assert story.state.phase == "opening", "no pause: what failed is out of it"
    same_after_replay(story)


@pytest.mark.parametrize("ranks", [(0, 0, 0, 0), (2, 4, 0, 2)], ids=["rank 0, which saves", "any node"])
def test_an_outage_of_storage_sets_no_node_aside(ranks: tuple[int, ...]) -> None:
    story = job("a", "b", "c")
    fails(story, ranks[0], finding=FULL, steps=50)
    for rank in ranks[1:]:
        assert rules(again(story, rank, finding=FULL, steps=0)) == []
        if story.state.phase == "gathering":
            story.happens(Tick(), 60.0)
    assert story.world == ["a", "b", "c"]
