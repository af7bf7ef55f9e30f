"""The core's promises, each as a short story of events and what must follow. No process is started here."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from robust_run.health.types import Finding
from robust_run.launcher import core
from robust_run.launcher.types import (
    AttemptEnded,
    EndAttempt,
    Event,
    Finish,
    GuardLost,
    JobStarted,
    Progress,
    RankEvidence,
    RankExited,
    RecordIncident,
    SignalReceived,
    SignalWorkers,
    SpawnFailed,
    StartAttempt,
    StoreLost,
    Tick,
    WakeAt,
)

PEER = Finding(kind="peer_connection", line="Connection closed by peer", exception="RuntimeError")
BUG = Finding(
    kind="exception", line="ValueError: boom", exception="ValueError", message="boom", frame="train.py:3 in f"
)
TYPO = Finding(kind="exception", line="NameError: x", exception="NameError", message="x", heals=False)


def policy(**changes: object) -> core.Policy:
    base = core.Policy(
        nproc=2, max_restarts=3, progress_after_s=600, restart_grace_s=3, shutdown_timeout_s=30, patience_s=0.5
    )
    return msgspec.structs.replace(base, **changes)


def evidence(rank: int, exit_code: int | None, at_s: float = 1.0, **more: object) -> RankEvidence:
    return RankEvidence(rank=rank, pid=100 + rank, exit_code=exit_code, exited_at_s=at_s, **more)  # type: ignore[arg-type]


class Story:
    """Feeds events to the core and remembers what it asked for."""

    def __init__(self, **changes: object) -> None:
        self.policy = policy(**changes)
        self.state = core.JobState()
        self.now_s = 0.0
        self.happens(JobStarted())

    def happens(self, event: Event, after_s: float = 0.0) -> list[object]:
        self.now_s += after_s
        self.state, actions = core.step(self.policy, self.state, event, self.now_s)
        return list(actions)

    def exits(self, rank: int, code: int, finding: Finding | None = None, after_s: float = 0.0) -> list[object]:
        return self.happens(RankExited(attempt=self.state.attempt, rank=rank, exit_code=code, finding=finding), after_s)

    def ended(self, *ranks: RankEvidence, steps: int | None = None, lived_s: float = 1.0) -> list[object]:
        progress = Progress(steps=steps, lived_s=lived_s)
        return self.happens(AttemptEnded(attempt=self.state.attempt, started_at_s=0.0, ranks=ranks, progress=progress))

    def crash_once(
        self, steps: int | None = None, lived_s: float = 1.0, finding: Finding | None = None
    ) -> list[object]:
        code = 1 if finding else -9
        self.exits(1, code, finding)
        self.exits(0, -15)
        return self.ended(
            evidence(0, -15, 2.0, signalled_at_s=1.5),
            evidence(1, code, 1.0, finding=finding),
            steps=steps,
            lived_s=lived_s,
        )


def test_all_ranks_ending_well_end_the_job_with_zero() -> None:
    story = Story()
    assert story.exits(0, 0) == []
    assert story.exits(1, 0) == [EndAttempt(attempt=0, grace_s=3)]
    assert story.ended(evidence(0, 0), evidence(1, 0)) == [Finish(exit_code=0, outcome="done")]


def test_a_killed_rank_ends_its_peers_and_the_job_starts_again() -> None:
    story = Story()
    assert story.exits(1, -9) == [SignalWorkers(attempt=0, signal=15), WakeAt(3.0)]
    assert story.exits(0, -15) == [EndAttempt(attempt=0)]
    incident, start = story.ended(evidence(0, -15, 2.0, signalled_at_s=1.5), evidence(1, -9, 1.0))
    assert isinstance(incident, RecordIncident)
    assert incident.verdict.ranks == (1,)
    assert incident.verdict.exit_code == 137
    assert start == StartAttempt(1)


def test_a_survivor_that_ignores_sigterm_delays_the_restart_by_the_grace_and_no_more() -> None:
    story = Story()
    story.exits(1, -9)
    assert story.happens(Tick(), after_s=2.9) == []
    assert story.happens(Tick(), after_s=0.1) == [EndAttempt(attempt=0)]


def test_a_lost_connection_waits_for_the_rank_that_says_why() -> None:
    story = Story()
    assert story.exits(0, 1, PEER) == [WakeAt(0.5)]
    assert story.exits(1, 1, BUG, after_s=0.2) == [EndAttempt(attempt=0)]
    incident, _ = story.ended(evidence(0, 1, 1.0, finding=PEER), evidence(1, 1, 1.2, finding=BUG))
    assert incident.verdict.ranks == (1,)
    assert "ValueError: boom" in incident.verdict.sentence


def test_patience_with_a_lost_connection_is_short() -> None:
    story = Story()
    story.exits(0, 1, PEER)
    assert story.happens(Tick(), after_s=0.5) == [SignalWorkers(attempt=0, signal=15), WakeAt(3.5)]


def test_a_rank_that_spoke_before_we_ended_it_is_the_cause() -> None:
    """Its interpreter was still being torn down when its peers had already died of the broken connection."""
    story = Story()
    story.exits(0, 1, PEER)
    story.happens(Tick(), after_s=0.5)
    story.exits(1, -15)
    told = evidence(1, -15, 1.6, finding=BUG, spoke_at_s=0.9, signalled_at_s=1.5)
    incident, _ = story.ended(evidence(0, 1, 1.0, finding=PEER), told)
    assert incident.verdict.ranks == (1,)
    assert incident.verdict.exit_code == 1


def test_what_a_rank_says_after_we_ended_it_is_our_doing() -> None:
    story = Story()
    story.exits(0, -9)
    story.exits(1, 1, BUG)
    told = evidence(1, 1, 1.7, finding=BUG, spoke_at_s=1.6, signalled_at_s=1.5)
    incident, _ = story.ended(evidence(0, -9, 1.0), told)
    assert incident.verdict.ranks == (0,)


def test_only_lost_connections_are_an_unknown_cause_with_low_confidence() -> None:
    story = Story()
    story.exits(0, 1, PEER)
    story.exits(1, 1, PEER)
    incident, start = story.ended(evidence(0, 1, 1.0, finding=PEER), evidence(1, 1, 1.1, finding=PEER))
    assert (incident.verdict.kind, incident.verdict.confidence) == ("unknown", "low")
    assert start == StartAttempt(1)


def test_restarts_without_progress_are_limited() -> None:
    story = Story(max_restarts=2)
    assert story.crash_once()[-1] == StartAttempt(1)
    assert story.crash_once()[-1] == StartAttempt(2)
    finish = story.crash_once()[-1]
    assert finish == Finish(
        exit_code=137, outcome="failed", reason="2 restarts in a row brought no progress (--max-restarts)"
    )


def test_zero_restarts_means_never() -> None:
    assert isinstance(Story(max_restarts=0).crash_once()[-1], Finish)


def test_getting_further_each_time_never_runs_out_of_restarts() -> None:
    story = Story(max_restarts=1)
    for attempt in range(1, 50):
        assert story.crash_once(steps=attempt * 10)[-1] == StartAttempt(attempt)


def test_the_same_number_of_steps_again_is_no_progress() -> None:
    story = Story(max_restarts=2)
    outcomes = [story.crash_once(steps=7)[-1] for _ in range(3)]
    assert outcomes[:2] == [StartAttempt(1), StartAttempt(2)]
    assert isinstance(outcomes[2], Finish)


def test_a_long_life_is_progress() -> None:
    story = Story(max_restarts=1)
    for attempt in range(1, 20):
        assert story.crash_once(lived_s=601)[-1] == StartAttempt(attempt)


def test_an_exception_that_repeats_itself_stops_the_job() -> None:
    story = Story()
    assert story.crash_once(finding=BUG)[-1] == StartAttempt(1)
    finish = story.crash_once(finding=BUG)[-1]
    assert finish == Finish(exit_code=1, outcome="failed", reason="the same exception came back after a restart")


def test_an_exception_that_repeats_itself_after_progress_gets_another_chance() -> None:
    story = Story()
    story.crash_once(finding=BUG, steps=10)
    assert story.crash_once(finding=BUG, steps=20)[-1] == StartAttempt(2)


def test_a_mistake_in_the_program_is_not_run_twice() -> None:
    finish = Story().crash_once(finding=TYPO)[-1]
    assert isinstance(finish, Finish)
    assert finish.outcome == "failed"


def test_the_users_signal_reaches_the_workers_and_ends_the_job() -> None:
    story = Story()
    assert story.happens(SignalReceived(signal=15)) == [SignalWorkers(attempt=0, signal=15), WakeAt(30.0)]
    story.exits(0, 0)
    assert story.exits(1, -15) == [EndAttempt(attempt=0, grace_s=3)]
    assert story.ended(evidence(0, 0), evidence(1, -15)) == [
        Finish(exit_code=143, outcome="stopped", reason="stopped by SIGTERM")
    ]


def test_asking_twice_ends_the_job_at_once() -> None:
    story = Story()
    story.happens(SignalReceived(signal=2))
    assert story.happens(SignalReceived(signal=2, again=True)) == [EndAttempt(attempt=0)]


def test_workers_that_do_not_end_are_ended_after_the_shutdown_timeout() -> None:
    story = Story()
    story.happens(SignalReceived(signal=15))
    assert story.happens(Tick(), after_s=30.0) == [EndAttempt(attempt=0)]


def test_a_signal_during_a_restart_wins_over_the_restart() -> None:
    story = Story()
    story.exits(1, -9)
    story.exits(0, -15)
    assert story.happens(SignalReceived(signal=15)) == [EndAttempt(attempt=0)]
    assert [type(action) for action in story.ended(evidence(1, -9))] == [Finish]


def test_losing_the_guard_ends_everything() -> None:
    story = Story()
    assert story.happens(GuardLost()) == [EndAttempt(attempt=0)]
    assert story.ended(evidence(0, -9), evidence(1, -9))[-1].exit_code == 137


def test_a_worker_that_cannot_be_started_is_the_platforms_fault() -> None:
    story = Story(max_restarts=0)
    assert story.happens(SpawnFailed(attempt=0, rank=1, message="cannot start rank 1: no memory")) == [
        EndAttempt(attempt=0)
    ]
    incident, finish = story.ended(evidence(0, -9, signalled_at_s=0.5))
    assert incident.verdict.kind == "node_fault"
    assert "no memory" in incident.verdict.sentence
    assert finish.exit_code == 1


def test_a_lost_store_restarts_the_job() -> None:
    story = Story()
    assert story.happens(StoreLost(attempt=0, detail="the store's process died")) == [EndAttempt(attempt=0)]
    assert story.ended(evidence(0, -9, signalled_at_s=0.5), evidence(1, -9, signalled_at_s=0.5))[-1] == StartAttempt(1)


def test_news_of_a_dead_attempt_changes_nothing() -> None:
    story = Story()
    story.crash_once()
    before = story.state
    assert story.happens(RankExited(attempt=0, rank=0, exit_code=-9)) == []
    assert story.happens(StoreLost(attempt=0, detail="late")) == []
    assert story.state == before


EVENTS = st.one_of(
    st.just(JobStarted()),
    st.builds(
        RankExited,
        attempt=st.integers(0, 3),
        rank=st.integers(0, 3),
        exit_code=st.sampled_from([0, 1, 7, -9, -15]),
        finding=st.sampled_from([None, PEER, BUG, TYPO]),
    ),
    st.builds(SignalReceived, signal=st.sampled_from([2, 15]), again=st.booleans()),
    st.just(GuardLost()),
    st.just(Tick()),
    st.builds(StoreLost, attempt=st.integers(0, 3), detail=st.just("gone")),
    st.builds(SpawnFailed, attempt=st.integers(0, 3), rank=st.integers(0, 3), message=st.just("no")),
    st.builds(
        AttemptEnded,
        attempt=st.integers(0, 3),
        started_at_s=st.just(0.0),
        ranks=st.lists(
            st.builds(
                RankEvidence,
                rank=st.integers(0, 3),
                pid=st.just(1),
                exit_code=st.sampled_from([None, 0, 1, -9]),
                exited_at_s=st.floats(0, 10),
                signalled_at_s=st.none() | st.floats(0, 10),
                spoke_at_s=st.none() | st.floats(0, 10),
                finding=st.sampled_from([None, PEER, BUG, TYPO]),
            ),
            max_size=4,
        ).map(tuple),
        progress=st.builds(Progress, lived_s=st.floats(0, 1000), steps=st.none() | st.integers(0, 100)),
    ),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=40), st.integers(1, 4))
def test_whatever_happens_the_core_keeps_its_promises(events: list[Event], nproc: int) -> None:
    story = Story(nproc=nproc)
    started, finished, ends = [0], 0, 0
    for event in events:
        before = story.state
        for action in story.happens(event, after_s=0.1):
            if isinstance(action, StartAttempt):
                assert before.end_sent, "a new attempt only after the old one was ended whole"
                assert action.attempt == started[-1] + 1, "attempt numbers never repeat or skip"
                started.append(action.attempt)
                ends = 0
            elif isinstance(action, EndAttempt):
                ends += 1
                assert ends == 1 or action.grace_s == 0, "ending twice can only mean: faster"
            elif isinstance(action, Finish):
                finished += 1
                assert finished == 1, "a job ends once"
        if finished:
            assert story.state.phase == "over"
        if story.state.phase in ("suspecting",) or (
            story.state.phase in ("ending", "stopping") and not story.state.end_sent
        ):
            assert story.state.deadline_at_s is not None, "nothing is waited for without a limit"
    assert story.happens(JobStarted()) == [] or not events
