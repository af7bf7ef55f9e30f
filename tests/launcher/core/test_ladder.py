"""When the ladder begins, which rung follows, and what is done: stories of the core, and a replay on simulated groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import BUG, Story, evidence, incident_of, one_node, several_nodes, told_to_end

from robust_run.health.checks.types import Ambiguity, CheckJudgement, SuspectNode
from robust_run.health.types import Event as Sign
from robust_run.health.types import Finding
from robust_run.launcher.core.ladder.ladder_state import ladder_state_of
from robust_run.launcher.core.state import LADDER, JobState
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import EndAttempt, Finish, OpenStore, RecordIncident, Say, StartAttempt
from robust_run.launcher.model.check_events import Decided, Diagnose, Diagnosed, ReplayStepped, StandbyChecked
from robust_run.launcher.model.code_events import CodeCaptured, CodeVersion, StepsSurvived, UpdateStaged
from robust_run.launcher.model.events import (
    AttemptEnded,
    Event,
    Inquired,
    RankExited,
    SignalReceived,
    StoreOpened,
    Tick,
)
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.job import Progress
from robust_run.launcher.model.node_events import ControllerResumed, NodeReturned
from robust_run.launcher.model.resume_events import Damage, LookForCheckpoints, ResumeChosen
from robust_run.tracer.types import TraceVerdict

FOUR = ("a", "b", "c", "d")
ILLEGAL = Finding(
    kind="accelerator",
    line="CUDA error: an illegal memory access",
    trouble="illegal_memory_access",
    exception="AcceleratorError",
)
NAN = Finding(kind="exception", line="x", exception="ValueError", message="loss is nan", trouble="nan", frame="t.py:1")
FULL = Finding(kind="out_of_memory", line="CUDA out of memory", trouble="device_memory")
SEGV, KILL = -11, -9


def crash(
    story: Story, code: int = SEGV, finding: Finding | None = None, rank: int = 0, steps: int | None = None
) -> list[Any]:
    """Let a rank of the attempt that runs fail by itself and all nodes end it; return what follows."""
    story.exits(rank, code, finding)
    last: list[Any] = []
    at_s = story.now_s
    for placement in tuple(story.state.layout):
        ranks = range(placement.first_rank, placement.first_rank + placement.nproc)
        ended = [
            evidence(each, code, at_s, finding=finding) if each == rank else told_to_end(each, at_s + 1)
            for each in ranks
        ]
        last = story.ends(placement.node, *ended, steps=steps)
    return last


def of(kind: type, actions: list[Any]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


def checked(story: Story, *suspects: SuspectNode, after_s: float = 5.0, **more: Any) -> list[Any]:
    """The checks are over: these nodes are suspect, the others passed."""
    bad = {each.node for each in suspects}
    passed = tuple(name for name in story.world if name not in bad)
    judged = CheckJudgement(**{"suspects": suspects, "passed": passed, **more})
    return story.happens(Diagnosed(attempt=story.state.attempt, judgement=judged, at_unix_s=9.0), after_s)


def suspect(node: str, confidence: str = "high") -> SuspectNode:
    return SuspectNode(
        node=node,
        check="model",
        confidence=confidence,
        rule="odd_output",
        sentence=f"{node} computes other bits",  # type: ignore[arg-type]
    )


def rungs(story: Story) -> list[str]:
    return list(ladder_state_of(story.state).ladder.rungs)


def again(story: Story, **more: Any) -> list[Any]:
    """The next attempt runs, and fails likewise."""
    story.starts()
    return crash(story, **more)


# --- when it begins -------------------------------------------------------------------------------------------------


def test_the_first_crash_is_tried_again_at_once() -> None:
    story = one_node(diagnose="auto")
    actions = crash(story)
    assert incident_of(actions).action == "relaunch"
    assert of(OpenStore, actions) and not of(Decided, actions)


def test_a_second_crash_without_progress_has_the_nodes_checked() -> None:
    story = one_node(diagnose="auto")
    crash(story)
    actions = again(story)
    assert incident_of(actions).action == "diagnose"
    assert [each.rule for each in of(Decided, actions)] == ["unexplained_diagnose"]
    (order,) = of(Diagnose, actions)
    assert order == Diagnose(attempt=1, nodes=("here",), checks=("compute", "model", "exchange"), seconds=1.0)
    assert story.state.phase == "diagnosing" and not of(OpenStore, actions), "nothing runs meanwhile"


def test_ranks_that_gloo_ends_since_calls_differ_are_started_again_and_no_node_is_checked() -> None:
    story = one_node(diagnose="auto")
    said = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 336 vs 184."
    other_size = Finding(kind="native_crash", line=said, trouble="mismatch")
    crash(story, -6, other_size)
    actions = again(story, code=-6, finding=other_size)
    incident = incident_of(actions)
    assert (incident.verdict.kind, incident.action) == ("mismatch", "relaunch")
    assert "rule worker.mismatch: report" in incident.verdict.evidence
    assert not of(Decided, actions) and not of(Diagnose, actions)


def test_crashes_with_progress_between_them_pass() -> None:
    story = one_node(diagnose="auto")
    crash(story, code=-6, steps=5)
    assert incident_of(again(story, code=-6, steps=9)).action == "relaunch"


def test_a_segmentation_fault_that_comes_back_is_looked_into_even_with_progress() -> None:
    story = one_node(diagnose="auto")
    crash(story, steps=5)
    assert incident_of(again(story, steps=9)).action == "diagnose"


@pytest.mark.parametrize("finding", [ILLEGAL, NAN], ids=["illegal memory access", "nan"])
def test_some_kinds_are_looked_into_at_once(finding: Finding) -> None:
    story = several_nodes(*FOUR, diagnose="auto")
    actions = crash(story, 1, finding)
    (decided,) = of(Decided, actions)
    assert decided.rule == ("nan_diagnose" if finding is NAN else "unexplained_diagnose")
    assert of(Diagnose, actions)[0].seconds == (30.0 if finding is NAN else 3.0)


@pytest.mark.parametrize(
    ("code", "finding"), [(KILL, None), (-15, None), (7, None), (1, FULL)], ids=["kill", "term", "own code", "memory"]
)
def test_what_explains_itself_never_begins_it(code: int, finding: Finding | None) -> None:
    story = one_node(diagnose="auto", max_restarts=9)
    crash(story, code, finding)
    for _ in range(4):
        assert incident_of(again(story, code=code, finding=finding)).action == "relaunch"
    assert story.state.ladder_state == b""


def test_a_user_s_exception_stops_as_ever() -> None:
    story = one_node(diagnose="always")
    crash(story, 1, BUG)
    actions = again(story, code=1, finding=BUG)
    assert "the same exception came back" in of(Finish, actions)[0].reason


def test_always_begins_with_the_first_and_never_with_none() -> None:
    assert incident_of(crash(one_node(diagnose="always"), KILL)).action == "diagnose"
    story = one_node(diagnose="never", max_restarts=2)
    crash(story)
    assert incident_of(again(story)).action == "relaunch"
    assert of(Finish, again(story))[0].reason.startswith("2 restarts in a row brought no progress")


def test_max_restarts_is_asked_first_and_tells_what_is_known() -> None:
    story = one_node(diagnose="auto", max_restarts=2)
    crash(story)
    again(story)
    checked(story)
    (end,) = of(Finish, again(story))
    assert "--max-restarts" in end.reason and "tried: check the nodes, try again as it is" in end.reason
    assert incident_of(crash(one_node(diagnose="always", max_restarts=0))).action == "stop"


# --- the rungs ------------------------------------------------------------------------------------------------------


def test_one_node_is_tried_again_and_then_stopped_with_everything_known() -> None:
    story = one_node(diagnose="auto", max_restarts=9)
    crash(story)
    again(story)
    actions = checked(story)
    assert [each.rule for each in of(Decided, actions)] == ["all_passed"] and of(OpenStore, actions)
    actions = again(story)
    (end,) = of(Finish, actions)
    assert (end.exit_code, end.outcome) == (139, "failed")
    assert "nothing was found" not in end.sentence and "no replay: " in end.reason
    assert incident_of(actions).action == "stop"


def test_a_job_s_only_node_that_is_at_fault_for_certain_ends_the_job() -> None:
    story = one_node(diagnose="auto")
    crash(story)
    again(story)
    actions = checked(story, suspect("here"))
    assert [each.rule for each in of(Decided, actions)] == ["lone_node"]
    assert of(Finish, actions)[0].exit_code == 139


def test_a_job_s_only_node_that_is_only_slow_goes_on() -> None:
    story = one_node(diagnose="auto")
    crash(story)
    again(story)
    assert of(OpenStore, checked(story, suspect("here", "medium")))


def test_suspects_are_evicted_and_a_standby_takes_over() -> None:
    story = several_nodes(*FOUR, fewest=3, diagnose="auto")
    story.joins("spare")
    crash(story)
    again(story)
    actions = checked(story, suspect("b"))
    assert [(each.rung, each.nodes) for each in of(Decided, actions)] == [("evict", ("b",))]
    assert story.state.evicted["b"].by == LADDER
    assert story.world == ["a", "spare", "c", "d"]
    story.starts()
    assert of(Decided, crash(story, steps=7))[0].rule == "evict_helped", "it got further"


def test_more_suspects_than_may_be_evicted_stay() -> None:
    story = several_nodes(*FOUR, diagnose="auto", max_evict_share=0.25)
    crash(story)
    again(story)
    actions = checked(story, suspect("a"), suspect("b"))
    assert [each.rule for each in of(Decided, actions)] == ["too_many_suspects"]
    assert not story.state.evicted and of(OpenStore, actions)


def test_a_suspect_that_is_lost_meanwhile_need_not_be_evicted() -> None:
    story = several_nodes(*FOUR, fewest=3, diagnose="auto")
    crash(story)
    again(story)
    story.is_lost("b")
    actions = checked(story, suspect("b"))
    assert not story.state.evicted
    assert [each.rung for each in of(Decided, actions)] == ["reattempt"] and story.world == ["a", "c", "d"]


def test_nodes_of_which_one_is_at_fault_are_not_evicted_beyond_the_share() -> None:
    story = several_nodes(*FOUR, diagnose="auto")
    crash(story)
    again(story)
    unclear = Ambiguity(nodes=("a", "b"), check="neighbours", rule="between", sentence="a or b")
    assert of(Decided, checked(story, ambiguous=(unclear,)))[0].rule == "ambiguous_kept"


def test_what_failed_again_is_rolled_back_to_the_version_before() -> None:
    story = several_nodes(*FOUR, diagnose="auto", max_restarts=9)
    first = CodeVersion(number=1, tree="a" * 64, by="ann")
    story.happens(CodeCaptured(version=first))
    second = CodeVersion(number=2, tree="b" * 64, parents=(1,), by="ann")
    story.happens(UpdateStaged(version=second))
    crash(story, KILL)
    story.starts()
    for name in FOUR:
        story.happens(StepsSurvived(attempt=1, node=name, steps=20, step_s=0.1))
    assert story.state.code.trusted == 2, "it has proven itself"
    crash(story)
    again(story)
    checked(story)
    actions = again(story)
    assert [(each.rung, each.version) for each in of(Decided, actions)] == [("rollback", "version 1")]
    assert incident_of(actions).action == "rollback"
    assert story.state.code.running == 1


def test_an_eviction_in_vain_has_the_nodes_checked() -> None:
    story = several_nodes(*FOUR, fewest=3, diagnose="auto", max_restarts=9)
    crash(story)
    again(story)
    checked(story, suspect("b"))
    actions = again(story)  # it fails again without b: the episode goes on
    assert of(Decided, actions)[0].rung == "stop", "three nodes are too few for a replay, and there is no other version"


def test_stop_ends_a_diagnosis_at_once() -> None:
    story = several_nodes(*FOUR, diagnose="auto")
    crash(story)
    again(story)
    (end,) = of(Finish, story.happens(SignalReceived(signal=15)))
    assert end.outcome == "stopped"
    assert checked(story) == []


def test_a_controller_that_comes_back_checks_anew() -> None:
    story = several_nodes(*FOUR, diagnose="auto")
    crash(story)
    (before,) = of(Diagnose, again(story))
    assert story.happens(ControllerResumed(term=2)) == [before]


def test_a_diagnosis_that_is_resumed_is_ordered_of_the_agents_that_came_in_the_place_of_others() -> None:
    story = several_nodes(*FOUR, diagnose="auto")
    crash(story)
    again(story)
    story.happens(ControllerResumed(term=2))
    orders = [of(Diagnose, story.joins(name, id=f"new-{name}")) for name in FOUR]
    assert orders[:3] == [[], [], []]
    assert orders[3][0].nodes == ("new-a", "new-b", "new-c", "new-d")


def test_a_node_that_is_restarted_while_it_is_checked_is_checked_anew() -> None:
    story = several_nodes(*FOUR, diagnose="auto")
    crash(story)
    again(story)
    story.is_lost("b")
    (order,) = of(Diagnose, story.joins("b", id="new-b"))
    assert order.nodes == ("a", "new-b", "c", "d")
    assert not of(Diagnose, story.joins("e"))


# --- standbys -------------------------------------------------------------------------------------------------------


def standby(node: str, admitted: bool = True) -> StandbyChecked:
    return StandbyChecked(
        node=node, name=node, admitted=admitted, rule="odd_output", sentence="other bits", at_unix_s=5.0
    )


def test_a_standby_that_was_checked_is_taken_before_one_that_was_not() -> None:
    story = several_nodes("a", "b")
    story.joins("early")
    story.joins("late")
    story.happens(standby("late"))
    story.is_lost("b")
    story.all_end()
    assert story.world == ["a", "late"]


def test_a_standby_that_fails_is_refused_with_the_rule() -> None:
    story = several_nodes("a", "b")
    story.joins("bad")
    said = of(Say, story.happens(standby("bad", admitted=False)))
    assert said[0].text == "bad is not admitted (odd_output): other bits"
    assert story.state.evicted["bad"].by == "robust-run, admission"
    story.is_lost("b")
    story.all_end()
    assert story.state.phase == "gathering"


def test_a_rule_that_refuses_everybody_is_not_believed() -> None:
    story = several_nodes("a", "b", max_evict_share=0.1)
    said: list[Say] = []
    for name in ("s1", "s2", "s3"):
        story.joins(name)
        said = of(Say, story.happens(standby(name, admitted=False)))
    assert "but so was 1 before it" in said[0].text
    assert list(story.state.evicted) == ["s1"]
    story.is_lost("b")
    story.all_end()
    assert story.world == ["a", "s2"], "a node that may be bad is better than none"


def test_what_is_said_of_a_node_that_was_needed_meanwhile_comes_too_late() -> None:
    story = several_nodes("a", "b")
    story.joins("spare")
    story.is_lost("b")
    story.all_end()
    assert story.world == ["a", "spare"]
    assert story.happens(standby("spare", admitted=False)) == []


# --- replay ---------------------------------------------------------------------------------------------------------


class Groups:
    """Nodes that run what a replay asks for: the program fails on some of them."""

    def __init__(self, story: Story, bad: set[str]) -> None:
        self.story, self.bad = story, bad
        self.passes: list[list[list[str]]] = []

    def run(self, actions: list[Any]) -> list[Any]:
        """Answer orders until none of a replay is left; return what was done last."""
        while self.story.state.phase == "replaying":
            opens = of(OpenStore, actions)
            assert len({order.attempt for order in opens}) == len(opens), "each group is an attempt of its own"
            self.passes.append([])
            actions = [each for order in opens for each in self.one(order)]
        return actions

    def one(self, order: OpenStore) -> list[Any]:
        event = StoreOpened(attempt=order.attempt, node=order.node, address="10.0.0.1", port=1)
        (start,) = of(StartAttempt, self.story.happens(event))
        members = [placement.node for placement in start.placements]
        self.passes[-1].append(members)
        assert start.nodes == len(members) and start.world_size == 2 * len(members) and start.replay_steps >= 10
        if self.bad.intersection(members):
            ends = self.story.happens(RankExited(attempt=order.attempt, rank=0, exit_code=SEGV))
        else:
            ends = [
                each
                for node in members
                for each in self.story.happens(ReplayStepped(attempt=order.attempt, node=node), 0.1)
            ]
        (end,) = of(EndAttempt, ends)
        assert set(end.only) == set(members) and end.attempt == order.attempt
        return [each for node in members for each in self.ended(order.attempt, node)]

    def ended(self, attempt: int, node: str) -> list[Any]:
        event = AttemptEnded(attempt=attempt, node=node, started_at_s=0.0, ranks=(), progress=Progress())
        return self.story.happens(event)


def replaying(names: tuple[str, ...], **policy: Any) -> tuple[Story, list[Any]]:
    """Return a story whose ladder has come to the replay."""
    story = several_nodes(*names, **{"fewest": 1, "diagnose": "auto", "no_replay": "", "max_restarts": 9, **policy})
    crash(story)
    again(story)
    checked(story)
    return story, again(story)


def names_of(count: int) -> tuple[str, ...]:
    return tuple(f"n{number:02}" for number in range(count))


def test_a_replay_finds_the_one_node_of_24_as_the_paper_does() -> None:
    names = names_of(24)
    story, actions = replaying(names)
    assert incident_of(actions).action == "replay"
    groups = Groups(story, {"n13"})
    after = groups.run(actions)
    rows, columns = groups.passes[0], groups.passes[-1]
    assert sorted(map(len, rows)) == [4] * 6, "m = 4"
    assert ["n12", "n13", "n14", "n15"] in rows
    assert ["n01", "n07", "n13", "n19"] in groups.passes[5] and all(len(each) == 4 for each in columns)
    (evicted,) = [each for each in of(Decided, after) if each.rung == "evict"]
    assert (evicted.rule, evicted.nodes) == ("replay_found", ("n13",))
    assert "n13" not in story.world and len(story.world) == 23


def test_a_replay_that_fails_everywhere_blames_no_node() -> None:
    story, actions = replaying(FOUR)
    after = Groups(story, set(FOUR)).run(actions)
    assert of(Decided, after)[-1].rule == "replay_everywhere"
    (end,) = of(Finish, after)
    assert "all 2 groups failed" in end.reason and end.exit_code == 139


def replaying_from_checkpoints() -> tuple[Story, list[Any]]:
    """Return a story whose ladder has come to the replay, of nodes with a folder of checkpoints."""
    story = several_nodes(*FOUR, fewest=1, diagnose="auto", no_replay="", max_restarts=9)
    crash(story)
    again(story)
    checked(story)
    for member in story.state.members.values():
        member.info = msgspec.structs.replace(member.info, ckpt_dir="/ckpt")
    return story, again(story)


def test_groups_of_a_replay_start_when_it_is_chosen_where_from() -> None:
    story, actions = replaying_from_checkpoints()
    questions, opens = of(LookForCheckpoints, actions), of(OpenStore, actions)
    assert len(opens) > 1 and [each.attempt for each in questions] == [each.attempt for each in opens]
    for order in opens:
        opened = StoreOpened(attempt=order.attempt, node=order.node, address="10.0.0.1", port=1)
        assert of(StartAttempt, story.happens(opened)) == []
        chosen = ResumeChosen(attempt=order.attempt, source="storage", step=7, uuid="u7", name="step-7")
        (start,) = of(StartAttempt, story.happens(chosen))
        assert start.resume is not None and start.resume.step == 7 and start.replay_steps >= 10


def test_a_group_that_cannot_read_its_checkpoint_says_nothing_of_its_nodes() -> None:
    story, actions = replaying_from_checkpoints()
    last: list[Any] = []
    for number, order in enumerate(of(OpenStore, actions)):
        story.happens(StoreOpened(attempt=order.attempt, node=order.node, address="10.0.0.1", port=1))
        chosen = ResumeChosen(attempt=order.attempt, source="storage", step=7, uuid="u7", name="step-7")
        (start,) = of(StartAttempt, story.happens(chosen))
        story.happens(RankExited(attempt=order.attempt, rank=0, exit_code=1))
        damage = Damage(rank=0, uuid="u7", name="step-7", step=7, reason="a wrong digest") if number == 0 else None
        for placement in start.placements:
            last = story.happens(
                AttemptEnded(
                    attempt=order.attempt,
                    node=placement.node,
                    started_at_s=0.0,
                    ranks=(),
                    progress=Progress(),
                    damage=damage,
                )
            )
    assert set(story.state.passed_over) == {"u7"}
    assert f"{len(of(OpenStore, actions)) - 1} of {len(of(OpenStore, actions))} groups failed" in of(Say, last)[0].text


def test_a_replay_that_does_not_fail_ends_with_what_is_known() -> None:
    story, actions = replaying(FOUR)
    groups = Groups(story, set())
    after = groups.run(actions)
    assert len(groups.passes) == 5 and of(Decided, after)[-1].rule == "replay_clean"


def test_groups_are_whole_replicas() -> None:
    story, actions = replaying(names_of(8), replay_unit=2)
    groups = Groups(story, {"n03"})
    groups.run(actions)
    assert all(len(each) % 2 == 0 for made in groups.passes for each in made)


def test_a_program_that_may_not_be_replayed_is_not() -> None:
    _, actions = replaying(FOUR, no_replay="train.py does not mention ROBUST_REPLAY")
    assert "no replay: train.py does not mention ROBUST_REPLAY" in of(Finish, actions)[0].reason


def test_groups_that_live_for_long_enough_have_passed() -> None:
    story, actions = replaying(FOUR)
    for order in of(OpenStore, actions):
        story.happens(StoreOpened(attempt=order.attempt, node=order.node, address="h", port=1))
    ends = of(EndAttempt, story.happens(Tick(), after_s=61))
    assert len(ends) == 2
    assert all(each.outcome == "passed" for each in ladder_state_of(story.state).replay.runs)  # type: ignore[union-attr]


def test_a_node_that_is_lost_ends_the_replay_and_the_job_tries_without_it() -> None:
    story, actions = replaying(FOUR)
    opens = of(OpenStore, actions)
    for order in opens:
        story.happens(StoreOpened(attempt=order.attempt, node=order.node, address="h", port=1))
    ends = of(EndAttempt, story.is_lost("b", after_s=5))
    assert {each.attempt for each in ends} == {order.attempt for order in opens}
    groups = Groups(story, set())
    last = [each for node, at in (("a", 0), ("c", 1), ("d", 1)) for each in groups.ended(opens[at].attempt, node)]
    assert story.state.phase == "opening" and story.world == ["a", "c", "d"]
    assert any("the replay is given up: b is gone" in each.text for each in of(Say, last))
    assert rungs(story) == [], "another episode begins if it fails again"


def test_a_node_that_was_away_ends_its_group() -> None:
    story, actions = replaying(FOUR)
    order = of(OpenStore, actions)[0]
    told = story.happens(NodeReturned(node=order.node, attempt=order.attempt))
    assert of(EndAttempt, told) == [EndAttempt(attempt=order.attempt, signal=15, grace_s=3, only=(order.node,))]


def test_a_stop_ends_all_groups_and_then_the_job() -> None:
    story, actions = replaying(FOUR)
    opens = of(OpenStore, actions)
    assert len(of(EndAttempt, story.happens(SignalReceived(signal=2)))) == 2
    groups = Groups(story, set())
    last = [
        each for node, at in (("a", 0), ("b", 0), ("c", 1), ("d", 1)) for each in groups.ended(opens[at].attempt, node)
    ]
    assert of(Finish, last)[0].exit_code == 130


def test_a_replay_does_not_outlive_its_controller() -> None:
    story, actions = replaying(FOUR)
    opens = of(OpenStore, actions)
    assert len(of(EndAttempt, story.happens(ControllerResumed(term=2, hold_s=0.0)))) == 2
    groups = Groups(story, set())
    for node, at in (("a", 0), ("b", 0), ("c", 1), ("d", 1)):
        groups.ended(opens[at].attempt, node)
    assert story.state.phase == "opening"


@given(count=st.integers(4, 30), data=st.data())
@settings(max_examples=60)
def test_a_replay_finds_any_one_node_that_always_fails(count: int, data: st.DataObject) -> None:
    names = names_of(count)
    bad = data.draw(st.sampled_from(names))
    story, actions = replaying(names)
    after = Groups(story, {bad}).run(actions)
    assert list(story.state.evicted) == [bad], of(Decided, after)
    assert story.state.attempt > max(0, count // 8) and story.state.phase == "opening"


# --- whatever happens -----------------------------------------------------------------------------------------------


@st.composite
def what_happens(draw: st.DrawFn) -> tuple[str, int, int]:
    return (
        draw(
            st.sampled_from(
                "crash nan kill hang group sign jump lost joins checked bad resume tick standby stop".split()
            )
        ),
        draw(st.integers(0, 7)),
        draw(st.integers(0, 9)),
    )


@given(st.lists(what_happens(), max_size=40), st.sampled_from(["auto", "always"]))
@settings(max_examples=150)
def test_whatever_happens_it_can_be_replayed_and_eats_no_job(told: list[tuple[str, int, int]], diagnose: str) -> None:
    names = names_of(6)
    story = several_nodes(*names, fewest=2, diagnose=diagnose, no_replay="", max_restarts=50, join_timeout_s=20)
    for kind, number, steps in told:
        _happens(story, kind, f"n{number:02}", steps)
        state = story.state
        if state.phase in ("gathering", "diagnosing"):
            assert not state.unended, "nothing runs"
        if state.phase == "over":
            break
    by_rules = [each for each in story.state.evicted.values() if each.by == "robust-run, admission"]
    assert len(by_rules) <= max(1, len(story.state.members) // 10)
    copied = replay(story.policy, story.told)
    assert msgspec.to_builtins(copied, order="deterministic") == msgspec.to_builtins(story.state, order="deterministic")
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
    assert ladder_state_of(kept) == ladder_state_of(story.state)
    events = [msgspec.json.decode(msgspec.json.encode(event), type=Event) for event, _ in story.told]  # type: ignore[arg-type]
    assert events == [event for event, _ in story.told], "a journal says the same"


def _happens(story: Story, kind: str, name: str, steps: int) -> None:
    state = story.state
    if kind in ("crash", "nan", "kill", "hang", "group", "sign", "jump") and state.phase == "opening":
        story.starts()
    if kind in ("hang", "group", "sign", "jump"):
        _hangs_or_is_seen(story, kind, name, steps)
    if kind in ("crash", "nan", "kill") and state.phase == "running":
        code, finding = {"crash": (SEGV, None), "nan": (1, NAN), "kill": (KILL, None)}[kind]
        crash(story, code, finding, steps=steps)
    elif kind == "lost":
        story.is_lost(name)
    elif kind == "joins":
        story.joins(name) if name not in state.members else story.returns(name)
    elif kind in ("checked", "bad"):
        checked(story, *([suspect(name)] if kind == "bad" else []))
    elif kind == "resume":
        story.happens(ControllerResumed(term=state.term + 1))
    elif kind == "tick":
        story.happens(Tick(), after_s=100.0)
    elif kind == "standby":
        story.happens(standby(name, admitted=steps > 4))
    elif kind == "stop" and steps == 0:
        story.happens(SignalReceived(signal=15))
    _groups_end(story)


def _hangs_or_is_seen(story: Story, kind: str, name: str, steps: int) -> None:
    """Ranks of a node, or of one of several nodes, hang; or a sensor of it says what asks for checks. It ends if it is to."""
    if kind in ("hang", "group"):
        named = (name,) if kind == "hang" else tuple(story.world[: 2 + steps % 3])
        verdict = TraceVerdict(
            kind="comm_stall",
            ranks=tuple(range(len(named))),
            nodes=named,
            confidence="high",
            rule="all_arrived",
            sentence="it stands still",
            proven=True,
            over_evicted=tuple(range(len(named))) if kind == "group" else (),
        )
        story.happens(Inquired(attempt=story.state.attempt, verdict=verdict, at_unix_s=7.0), 1.0)
    else:
        seen = "gpu.pcie_width" if kind == "sign" else "training.jump.stays"
        sign = Sign(name=seen, kind="alert", subject=str(steps), detail="so it is", at_s=story.now_s)
        story.happens(HealthSeen(node=name, event=sign, at_unix_s=7.0), 1000.0)
    if story.state.phase == "ending":
        for node in sorted(story.state.unended):
            story.ends(node, steps=steps)


def _groups_end(story: Story) -> None:
    """Nodes that were told to end a group do so."""
    run = ladder_state_of(story.state).replay
    if story.state.phase != "replaying" or run is None:
        return
    for one in run.runs:
        if one.outcome:
            for placement in one.layout:
                event = AttemptEnded(
                    attempt=one.attempt, node=placement.node, started_at_s=0.0, ranks=(), progress=Progress()
                )
                story.happens(event)


def test_records_of_incidents_have_the_names_that_reports_know() -> None:
    story = one_node(diagnose="always")
    record = incident_of(crash(story))
    assert isinstance(record, RecordIncident) and record.verdict.sentence == "rank 0 was killed by SIGSEGV (signal 11)"
