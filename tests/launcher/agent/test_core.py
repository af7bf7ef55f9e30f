"""The core's promises to a job of one node, each as a short story of events and what must follow. No process is started here.

Several nodes: `core/test_membership.py`. Everything at once: `core/test_job_property.py`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import BUG, PEER, TYPO, Story, evidence, one_node

from robust_run.health.types import Finding
from robust_run.launcher.core.state import GOING
from robust_run.launcher.core.step import replay
from robust_run.launcher.model.actions import EndAttempt, Finish, OpenStore, RecordIncident, StartAttempt, WakeAt
from robust_run.launcher.model.events import (
    AttemptEnded,
    Event,
    GuardLost,
    LimitNear,
    RankExited,
    SignalReceived,
    SpawnFailed,
    StoreLost,
    StoreOpened,
    Tick,
)
from robust_run.launcher.model.job import NodeInfo, Placement, Progress, RankEvidence
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    JobStarted,
    NodeCannotStart,
    NodeEvicted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReturned,
    RestartAsked,
)

#: A rank failed: the others get SIGTERM and the grace; the node waits for them, not the core.
AFTER_A_FAILURE = EndAttempt(attempt=0, signal=15, grace_s=3)
AT_ONCE = EndAttempt(attempt=0)


def ended(story: Story, *ranks: RankEvidence, **more: object) -> list[Any]:
    return story.ends("here", *ranks, **more)  # type: ignore[arg-type]


def crash_once(story: Story, finding: Finding | None = None, **progress: object) -> Any:
    """Let rank 1 fail; return the last thing that is done about it."""
    if story.state.phase == "opening":
        story.starts()
    code = 1 if finding else -9
    story.exits(1, code, finding)
    story.exits(0, -15)
    return ended(story, evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, code, 1, finding=finding), **progress)[-1]


def opening(attempt: int) -> OpenStore:
    """What a new attempt begins with."""
    return OpenStore(attempt=attempt, node="here")


# --- begin and end --------------------------------------------------------------------------------------------------


def test_the_store_is_opened_before_the_workers_are_started() -> None:
    story = Story()
    assert story.joins("here") == []
    assert story.happens(JobStarted()) == [opening(0)]
    assert story.opens() == [
        StartAttempt(
            attempt=0,
            address="10.0.0.1",
            port=29500,
            placements=(Placement(node="here", group_rank=0, first_rank=0, nproc=2),),
            world_size=2,
            nodes=1,
        )
    ]


def test_all_ranks_ending_well_end_the_job_with_zero() -> None:
    story = one_node()
    assert story.exits(0, 0) == [WakeAt(story.policy.hang_after_s)]  # then the other one is looked at, if it still runs
    assert story.exits(1, 0) == [EndAttempt(attempt=0, leftovers_s=3)]
    assert ended(story, evidence(0, 0), evidence(1, 0)) == [Finish(exit_code=0, outcome="done")]


def test_a_store_that_dies_when_all_ranks_have_ended_well_is_not_missed() -> None:
    story = one_node()
    story.exits(0, 0)
    story.exits(1, 0)
    assert story.happens(StoreLost(attempt=0, detail="gone")) == []
    assert ended(story, evidence(0, 0), evidence(1, 0)) == [Finish(exit_code=0, outcome="done")]


# --- a rank fails ---------------------------------------------------------------------------------------------------


def test_a_killed_rank_ends_its_peers_and_the_job_starts_again() -> None:
    story = one_node()
    assert story.exits(1, -9) == [AFTER_A_FAILURE]
    assert story.exits(0, -15) == []
    incident, again = ended(story, evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, -9, 1))
    assert isinstance(incident, RecordIncident)
    assert incident.verdict.ranks == (1,)
    assert incident.verdict.exit_code == 137
    assert (incident.symptom, incident.action) == ("worker_failed", "relaunch")
    assert again == opening(1)


def test_the_last_rank_that_fails_is_ended_like_any() -> None:
    story = one_node()
    story.exits(0, 0)
    assert story.exits(1, -9) == [AFTER_A_FAILURE]
    assert ended(story, evidence(0, 0, 0.5), evidence(1, -9, 1))[-1] == opening(1)


def test_a_lost_connection_waits_for_the_rank_that_says_why() -> None:
    story = one_node()
    assert story.exits(0, 1, PEER) == [WakeAt(0.5)]
    assert story.exits(1, 1, BUG, after_s=0.2) == [AFTER_A_FAILURE]
    incident, _ = ended(story, evidence(0, 1, 1, finding=PEER), evidence(1, 1, 1.2, finding=BUG))
    assert incident.verdict.ranks == (1,)
    assert "ValueError: boom" in incident.verdict.sentence
    assert incident.onset_at_s == 1, "trouble began when the first rank was seen to fail"


def test_patience_with_a_lost_connection_is_short() -> None:
    story = one_node()
    story.exits(0, 1, PEER)
    assert story.happens(Tick(), after_s=0.4) == []
    assert story.happens(Tick(), after_s=0.1) == [AFTER_A_FAILURE]


def test_a_second_lost_connection_does_not_prolong_the_patience() -> None:
    story = one_node(nproc=3)
    story.exits(0, 1, PEER)
    assert story.exits(1, 1, PEER, after_s=0.4) == []
    assert story.happens(Tick(), after_s=0.1) == [AFTER_A_FAILURE]


def test_a_rank_that_ends_well_after_a_peer_lost_its_connection_makes_no_good_attempt() -> None:
    story = one_node()
    story.exits(0, 1, PEER)
    assert story.exits(1, 0) == [EndAttempt(attempt=0, leftovers_s=3)]
    incident, again = ended(story, evidence(0, 1, finding=PEER), evidence(1, 0))
    assert incident.verdict.kind == "unknown"
    assert again == opening(1)


def test_a_rank_that_spoke_before_we_ended_it_is_the_cause() -> None:
    """Its interpreter was still being torn down when its peers had already died of the broken connection."""
    story = one_node()
    story.exits(0, 1, PEER)
    story.happens(Tick(), after_s=0.5)
    story.exits(1, -15)
    told = evidence(1, -15, 1.6, finding=BUG, spoke_at_s=0.9, signalled_at_s=1.5)
    incident, _ = ended(story, evidence(0, 1, 1, finding=PEER), told)
    assert incident.verdict.ranks == (1,)
    assert incident.verdict.exit_code == 1


def test_what_a_rank_raised_and_nobody_caught_is_as_good_as_an_exit() -> None:
    """Another has failed by itself and ended sooner: its interpreter had less to tear down."""
    story = one_node()
    story.exits(1, 1, TYPO)
    first = evidence(0, -15, 1.9, finding=BUG, spoke_at_s=1.01, raised_at_s=1.0, signalled_at_s=1.5)
    incident, *_ = ended(story, first, evidence(1, 1, 1.4, finding=TYPO, spoke_at_s=1.31, raised_at_s=1.3))
    assert incident.verdict.ranks == (0,)
    assert incident.verdict.aftermath == "1 other rank failed after it"


@pytest.mark.parametrize(
    "not_it",
    [
        pytest.param({"exit_code": -15, "signalled_at_s": 0.9}, id="it raised when it was told to end"),
        pytest.param({"exit_code": 0}, id="it ended well"),
        pytest.param({"exit_code": -15, "signalled_at_s": 1.5, "raised_at_s": None}, id="it has dealt with it"),
        pytest.param({"exit_code": -15, "signalled_at_s": 1.5, "finding": PEER}, id="it lost a connection"),
        pytest.param({"exit_code": -2, "signalled_at_s": 1.5, "finding": None}, id="Ctrl-C"),
    ],
)
def test_but_not(not_it: dict[str, Any]) -> None:
    story = one_node()
    story.exits(1, 1, BUG)
    known = {"finding": BUG, "spoke_at_s": 1.01, "raised_at_s": 1.0, **not_it}
    other = evidence(0, known.pop("exit_code"), 1.9, **known)
    incident, *_ = ended(story, other, evidence(1, 1, 1.4, finding=BUG, spoke_at_s=1.31, raised_at_s=1.3))
    assert incident.verdict.ranks == (1,)


def test_what_a_rank_says_after_we_ended_it_is_our_doing() -> None:
    story = one_node()
    story.exits(0, -9)
    story.exits(1, 1, BUG)
    told = evidence(1, 1, 1.7, finding=BUG, spoke_at_s=1.6, signalled_at_s=1.5)
    incident, _ = ended(story, evidence(0, -9, 1), told)
    assert incident.verdict.ranks == (0,)


def test_only_lost_connections_are_an_unknown_cause_with_low_confidence() -> None:
    story = one_node()
    story.exits(0, 1, PEER)
    story.exits(1, 1, PEER)
    incident, again = ended(story, evidence(0, 1, 1, finding=PEER), evidence(1, 1, 1.1, finding=PEER))
    assert (incident.verdict.kind, incident.verdict.confidence) == ("unknown", "low")
    assert again == opening(1)


# --- again or not ---------------------------------------------------------------------------------------------------


def test_restarts_without_progress_are_limited() -> None:
    story = one_node(max_restarts=2)
    assert crash_once(story) == opening(1)
    assert crash_once(story) == opening(2)
    assert crash_once(story) == Finish(
        exit_code=137,
        outcome="failed",
        reason="2 restarts in a row brought no progress (--max-restarts)",
        sentence="rank 1 was killed by SIGKILL (signal 9)",
    )


def test_a_program_that_says_never_again_is_heard_however_far_it_came() -> None:
    story = one_node()
    story.exits(1, 93)
    story.exits(0, -15)
    end = ended(story, evidence(0, -15, 2, signalled_at_s=1.5), evidence(1, 93, 1), steps=50)[-1]
    assert isinstance(end, Finish)
    assert (end.exit_code, end.reason) == (93, "exit code 93 says that it is not to be started again")


def test_zero_restarts_means_never() -> None:
    assert isinstance(crash_once(one_node(max_restarts=0)), Finish)


def test_getting_further_each_time_never_runs_out_of_restarts() -> None:
    story = one_node(max_restarts=1)
    for attempt in range(1, 50):
        assert crash_once(story, steps=attempt * 10) == opening(attempt)


def test_the_same_number_of_steps_again_is_no_progress() -> None:
    story = one_node(max_restarts=2)
    outcomes = [crash_once(story, steps=7) for _ in range(3)]
    assert outcomes[:2] == [opening(1), opening(2)]
    assert isinstance(outcomes[2], Finish)


def test_a_long_life_is_progress() -> None:
    story = one_node(max_restarts=1)
    for attempt in range(1, 20):
        assert crash_once(story, lived_s=601) == opening(attempt)


def test_an_exception_that_repeats_itself_stops_the_job() -> None:
    story = one_node()
    assert crash_once(story, BUG) == opening(1)
    assert crash_once(story, BUG) == Finish(
        exit_code=1,
        outcome="failed",
        reason="the same exception came back after a restart",
        sentence="rank 1 raised ValueError: boom (train.py:3 in f)",
    )


def test_an_exception_that_repeats_itself_after_progress_gets_another_chance() -> None:
    story = one_node()
    crash_once(story, BUG, steps=10)
    assert crash_once(story, BUG, steps=20) == opening(2)


def test_a_mistake_in_the_program_is_not_run_twice() -> None:
    finish = crash_once(one_node(), TYPO)
    assert isinstance(finish, Finish)
    assert finish.outcome == "failed"


def test_a_restart_that_an_operator_asks_for_counts_for_nothing() -> None:
    story = one_node(max_restarts=0)
    assert story.happens(RestartAsked(reason="new data", by="ann")) == [AFTER_A_FAILURE]
    incident, again = story.all_end()
    assert "asked for by ann: new data" in incident.verdict.sentence
    assert (incident.symptom, incident.action) == ("operator", "relaunch")
    assert again == opening(1)


def test_ranks_that_end_well_because_an_operator_wants_a_restart_have_not_done_their_work() -> None:
    story = one_node()
    story.happens(RestartAsked())
    ranks = [evidence(rank, 0, 1.5, signalled_at_s=1.0) for rank in (0, 1)]
    assert ended(story, *ranks)[-1] == opening(1)


# --- signals --------------------------------------------------------------------------------------------------------


def test_the_users_signal_reaches_the_workers_and_ends_the_job() -> None:
    story = one_node()
    assert story.happens(SignalReceived(signal=15)) == [
        EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3),
    ]
    assert ended(story, evidence(0, 0), evidence(1, -15)) == [
        Finish(exit_code=143, outcome="stopped", reason="stopped by SIGTERM")
    ]


def test_asking_twice_ends_the_job_at_once() -> None:
    story = one_node()
    story.happens(SignalReceived(signal=2))
    assert story.happens(SignalReceived(signal=2, again=True)) == [AT_ONCE]
    assert ended(story)[-1].exit_code == 130


def test_another_signal_that_is_no_repetition_changes_nothing() -> None:
    story = one_node()
    story.happens(SignalReceived(signal=2))
    assert story.happens(SignalReceived(signal=15)) == []
    assert ended(story)[-1].exit_code == 130


def test_a_signal_during_a_restart_wins_over_the_restart() -> None:
    story = one_node()
    story.exits(1, -9)
    assert story.happens(SignalReceived(signal=15)) == [], "the workers are being ended already"
    assert ended(story, evidence(1, -9)) == [Finish(exit_code=143, outcome="stopped", reason="stopped by SIGTERM")]


def test_an_impatient_signal_during_a_restart_cuts_the_grace_short() -> None:
    story = one_node()
    story.exits(1, -9)
    assert story.happens(SignalReceived(signal=15, again=True)) == [AT_ONCE]


def test_ranks_that_fail_while_the_job_is_stopped_are_no_incident() -> None:
    story = one_node()
    story.happens(SignalReceived(signal=15))
    assert story.exits(0, 1, BUG) == []
    assert story.happens(StoreLost(attempt=0, detail="gone")) == []
    assert [type(action) for action in ended(story, evidence(0, 1, finding=BUG))] == [Finish]


def test_a_signal_before_anything_runs_ends_the_job() -> None:
    story = Story()
    story.joins("here")
    assert story.happens(SignalReceived(signal=15))[-1].exit_code == 143
    assert story.happens(JobStarted()) == []


def test_a_signal_while_the_store_is_opened_ends_the_attempt_first() -> None:
    story = Story()
    story.joins("here")
    story.happens(JobStarted())
    assert story.happens(SignalReceived(signal=15)) == [
        EndAttempt(attempt=0, signal=15, grace_s=30, leftovers_s=3),
    ]
    assert story.opens() == [], "it is too late to start workers"
    assert story.ends("here")[-1].exit_code == 143


def test_what_fails_so_near_the_time_limit_is_left_to_the_requeue() -> None:
    story = one_node(max_restarts=0)
    story.starts()
    assert story.happens(LimitNear()) == []
    end = crash_once(story, BUG)
    assert (end.outcome, end.exit_code, "near the time limit" in end.reason) == ("stopped", 1, True)


def test_what_no_restart_can_mend_fails_near_the_time_limit_too() -> None:
    story = one_node()
    story.starts()
    story.happens(LimitNear())
    assert crash_once(story, TYPO).outcome == "failed"


def test_a_time_limit_that_was_moved_or_of_an_earlier_start_is_none() -> None:
    story = one_node()
    story.starts()
    story.happens(LimitNear())
    story.happens(LimitNear(near=False))
    assert crash_once(story) == opening(1)
    story.happens(LimitNear())
    story.happens(ControllerResumed(term=2, restart=1))
    assert not story.state.limit_is_near


def test_losing_the_guard_ends_everything() -> None:
    story = one_node()
    assert story.happens(GuardLost()) == [AT_ONCE]
    assert ended(story, evidence(0, -9), evidence(1, -9))[-1].exit_code == 137


# --- the platform ---------------------------------------------------------------------------------------------------


def test_a_worker_that_cannot_be_started_is_the_platforms_fault() -> None:
    story = one_node(max_restarts=0)
    assert story.happens(SpawnFailed(attempt=0, rank=1, message="cannot start rank 1: no memory")) == [AT_ONCE]
    incident, finish = ended(story, evidence(0, -9, signalled_at_s=0.5))
    assert incident.verdict.kind == "node_fault"
    assert incident.symptom == "platform"
    assert "no memory" in incident.verdict.sentence
    assert finish.exit_code == 1


def test_a_store_that_cannot_be_opened_is_the_platforms_fault() -> None:
    story = Story(max_restarts=0)
    story.joins("here")
    story.happens(JobStarted())
    assert story.happens(SpawnFailed(attempt=0, rank=0, message="cannot listen on 10.0.0.1")) == [AT_ONCE]
    assert "cannot listen" in story.ends("here")[0].verdict.sentence


def test_a_lost_store_restarts_the_job() -> None:
    story = one_node()
    assert story.happens(StoreLost(attempt=0, detail="the store's process died")) == [AT_ONCE]
    assert ended(story)[-1] == opening(1)


def test_trouble_of_one_attempt_is_forgotten_in_the_next() -> None:
    story = one_node()
    story.happens(StoreLost(attempt=0, detail="the store's process died"))
    ended(story)
    story.starts()
    story.exits(0, 0)
    story.exits(1, 0)
    assert ended(story, evidence(0, 0), evidence(1, 0)) == [Finish(exit_code=0, outcome="done")]


# --- what comes late ------------------------------------------------------------------------------------------------


def test_news_of_a_dead_attempt_changes_nothing() -> None:
    story = one_node()
    crash_once(story)
    before = story.state.phase, story.state.attempt, set(story.state.live)
    assert story.happens(RankExited(attempt=0, rank=0, exit_code=-9)) == []
    assert story.happens(StoreLost(attempt=0, detail="late")) == []
    assert story.happens(StoreOpened(attempt=0, node="here", address="", port=1)) == []
    assert story.happens(AttemptEnded(attempt=0, node="here", started_at_s=0, ranks=(), progress=Progress())) == []
    assert before == (story.state.phase, story.state.attempt, story.state.live)


def test_news_told_twice_changes_nothing() -> None:
    story = one_node()
    assert story.opens() == []
    story.exits(0, 0)
    assert story.exits(0, -9) == []
    assert story.exits(1, -9) == [AFTER_A_FAILURE]
    assert story.exits(1, -9) == []
    over = AttemptEnded(attempt=0, node="here", started_at_s=0, ranks=(evidence(1, -9),), progress=Progress())
    assert story.happens(over)[-1] == opening(1)
    assert story.happens(over) == []


def test_after_the_end_nothing_is_done_any_more() -> None:
    story = one_node()
    story.happens(GuardLost())
    ended(story)
    for event in (JobStarted(), Tick(), SignalReceived(signal=2), GuardLost(), RestartAsked()):
        assert story.happens(event) == []


# --- anything at all ------------------------------------------------------------------------------------------------

NODES = st.sampled_from(["a", "b", "c", "nobody"])
EVENTS = st.one_of(
    st.just(JobStarted()),
    st.builds(
        NodeJoined,
        node=st.builds(NodeInfo, id=NODES, name=st.sampled_from(["a", "b", "²", ""]), nproc=st.integers(1, 3)),
    ),
    st.builds(NodeReturned, node=NODES),
    st.builds(NodeLost, node=NODES, silent_s=st.floats(0, 10)),
    st.builds(NodeLeft, node=NODES, reason=st.just("")),
    st.builds(NodeEvicted, name=NODES, reason=st.just("")),
    st.builds(NodeCannotStart, name=NODES, reason=st.just("no script")),
    st.just(RestartAsked()),
    st.builds(ControllerResumed, term=st.integers(0, 5)),
    st.builds(StoreOpened, attempt=st.integers(0, 3), node=NODES, address=st.just(""), port=st.just(1)),
    st.builds(
        RankExited,
        attempt=st.integers(0, 3),
        rank=st.integers(0, 9),
        exit_code=st.sampled_from([0, 1, 7, -9, -15]),
        finding=st.sampled_from([None, PEER, BUG, TYPO]),
    ),
    st.builds(SignalReceived, signal=st.sampled_from([2, 15, 99]), again=st.booleans()),
    st.just(GuardLost()),
    st.just(Tick()),
    st.builds(StoreLost, attempt=st.integers(0, 3), detail=st.just("gone")),
    st.builds(SpawnFailed, attempt=st.integers(0, 3), rank=st.integers(0, 9), message=st.just("no")),
    st.builds(
        AttemptEnded,
        attempt=st.integers(0, 3),
        node=NODES,
        started_at_s=st.just(0.0),
        ranks=st.lists(
            st.builds(
                RankEvidence,
                rank=st.integers(0, 9),
                pid=st.just(1),
                exit_code=st.sampled_from([None, 0, 1, -9]),
                exited_at_s=st.floats(0, 10),
                signalled_at_s=st.none() | st.floats(0, 10),
                spoke_at_s=st.none() | st.floats(0, 10),
                raised_at_s=st.none() | st.floats(0, 10),
                finding=st.sampled_from([None, PEER, BUG, TYPO]),
            ),
            max_size=4,
        ).map(tuple),
        progress=st.builds(Progress, lived_s=st.floats(0, 1000), steps=st.none() | st.integers(0, 100)),
        fenced_after_s=st.none() | st.floats(0, 10),
    ),
)


@settings(max_examples=int(os.environ.get("JOB_PROPERTY_EXAMPLES", "400")), deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 2), st.integers(0, 2))
def test_whatever_comes_in_whatever_order_the_core_keeps_its_promises(
    events: list[Event], fewest: int, spare: int
) -> None:
    """No world could tell such stories; the core must neither raise nor lose count."""
    story = Story(fewest=fewest, most=fewest + spare, many=fewest + spare > 1)
    newest, finished = -1, 0
    for event in [JobStarted(), *events]:
        before = story.state.phase
        for action in story.happens(event, after_s=0.1):
            if isinstance(action, OpenStore) and action.attempt != newest:
                assert action.attempt == newest + 1, "attempt numbers never repeat or skip"
                newest = action.attempt
            elif isinstance(action, EndAttempt) and not action.only:
                stops = isinstance(event, SignalReceived) and any(cause.kind == "left" for cause in story.state.causes)
                assert before in GOING or not action.grace_s or (before == "ending" and stops), (
                    "twice can only mean: faster"
                )
            elif isinstance(action, Finish):
                finished += before != "over"
                assert finished == 1, "a job ends once"
        state = story.state
        assert (state.phase == "over") == bool(finished)
        if state.phase in ("suspecting", "gathering"):
            assert state.deadline_at_s is not None, "nothing is waited for without a limit"
        if state.phase in ("opening", "running", "suspecting", "ending", "stopping"):
            assert state.unended, "somebody will say that the attempt is over"
    assert replay(story.policy, story.told) == story.state
