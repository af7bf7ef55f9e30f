"""The controller's mind: what happens to a job, as a pure function from (state, event, now) to (state, actions).

No clock, process, file or log in here. The agent carries the actions out and feeds back what happens; tests and the
journal's replay feed the same events and must get the same actions. The life of an attempt:

    running ──all ranks ended well──────────────► ending ──AttemptEnded──► Finish
       │  a rank failed                             ▲           └────────► StartAttempt(n + 1)
       ├──────────────────► ending (SIGTERM, grace) ┘
       │  a rank lost its connection, peers alive   ▲
       ├──────────────────► suspecting ─────────────┘  (short patience: somebody else is about to say why)
       │  the user wants it to end
       └──────────────────► stopping (their signal, shutdown timeout) ──AttemptEnded──► Finish
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from robust_run.launcher.restart import Limits, Trail, decide
from robust_run.launcher.types import (
    Action,
    AttemptEnded,
    EndAttempt,
    Event,
    Finish,
    GuardLost,
    JobStarted,
    RankExited,
    RecordIncident,
    SignalReceived,
    SignalWorkers,
    SpawnFailed,
    StartAttempt,
    StoreLost,
    Tick,
    VerdictDraft,
    WakeAt,
)
from robust_run.launcher.verdict import attribute, own_failure
from robust_run.signals import signal_name

SIGKILL, SIGTERM = 9, 15

Phase = Literal["new", "running", "suspecting", "ending", "stopping", "over"]


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that decide, fixed for a job."""

    nproc: int
    max_restarts: int
    progress_after_s: float
    restart_grace_s: float
    shutdown_timeout_s: float
    patience_s: float = 1.0
    """How long peers of a rank that lost its connection may take to say what really happened."""


class JobState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the core knows between two events."""

    phase: Phase = "new"
    attempt: int = 0
    live: frozenset[int] = frozenset()
    """Local ranks whose process has not been seen to end."""
    deadline_at_s: float | None = None
    """When patience, grace or the shutdown timeout is over."""
    end_sent: bool = False
    """EndAttempt was given; AttemptEnded will follow."""
    detected_at_s: float | None = None
    """When the first failure of this attempt was seen."""
    stop_signal: int | None = None
    """The signal that ends the job, once it came."""
    trouble: str = ""
    """A failure of this attempt that is no rank's: a worker that could not be started, a lost store."""
    trail: Trail = Trail()


Step = tuple[JobState, tuple[Action, ...]]


def step(policy: Policy, state: JobState, event: Event, now_s: float) -> Step:
    """Return the next state and what is to be done now. Never raises; late or repeated events change nothing."""
    if state.phase == "over":
        return state, ()
    match event:
        case JobStarted() if state.phase == "new":
            return _start(policy, state, 0)
        case AttemptEnded(attempt=attempt) if attempt == state.attempt and state.end_sent:
            return _attempt_ended(policy, state, event, now_s)
        case RankExited(attempt=attempt, rank=rank) if attempt == state.attempt and rank in state.live:
            return _rank_exited(policy, state, event, now_s)
        case SpawnFailed(attempt=attempt, message=message) if attempt == state.attempt:
            return _trouble(state, message, now_s)
        case StoreLost(attempt=attempt, detail=detail) if attempt == state.attempt and not state.end_sent:
            return _trouble(state, detail, now_s)
        case SignalReceived():
            return _stop(policy, state, event, now_s)
        case GuardLost():
            return _end(_replace(state, phase="stopping", stop_signal=SIGKILL))
        case Tick():
            return _tick(policy, state, now_s)
        case _:
            return state, ()


def replay(policy: Policy, events: Iterable[tuple[Event, float]]) -> JobState:
    """Return the state that these events lead to: what a restarted controller continues from."""
    state = JobState()
    for event, now_s in events:
        state, _ = step(policy, state, event, now_s)
    return state


def _replace(state: JobState, **changes: object) -> JobState:
    return msgspec.structs.replace(state, **changes)


def _start(policy: Policy, state: JobState, attempt: int) -> Step:
    fresh = JobState(phase="running", attempt=attempt, live=frozenset(range(policy.nproc)), trail=state.trail)
    return fresh, (StartAttempt(attempt),)


def _end(state: JobState, grace_s: float = 0.0) -> Step:
    """End every process of the attempt now; once per attempt, except that a shorter grace may follow."""
    if state.end_sent and grace_s > 0:
        return state, ()
    return _replace(state, end_sent=True, deadline_at_s=None), (EndAttempt(attempt=state.attempt, grace_s=grace_s),)


def _end_others(policy: Policy, state: JobState, now_s: float) -> Step:
    """One failed, so none can go on: the survivors get SIGTERM and the grace."""
    ending = _replace(state, phase="ending", detected_at_s=_first(state.detected_at_s, now_s))
    if not ending.live:
        return _end(ending)
    deadline_at_s = now_s + policy.restart_grace_s
    return _replace(ending, deadline_at_s=deadline_at_s), (
        SignalWorkers(attempt=state.attempt, signal=SIGTERM),
        WakeAt(deadline_at_s),
    )


def _rank_exited(policy: Policy, state: JobState, event: RankExited, now_s: float) -> Step:
    state = _replace(state, live=state.live - {event.rank})
    if state.phase in ("ending", "stopping"):
        return (state, ()) if state.live else _end(state, policy.restart_grace_s if state.phase == "stopping" else 0.0)
    if event.exit_code == 0:
        if state.live:
            return state, ()
        # Every rank is gone. If one failed before (suspecting), the verdict waits for the evidence; else all is well
        # and children that workers left behind get the same time to end as survivors of a failure.
        return _end(_replace(state, phase="ending"), policy.restart_grace_s)
    is_peer_error = event.finding is not None and event.finding.kind == "peer_connection"
    if not is_peer_error or not state.live:
        return _end_others(policy, state, now_s)
    if state.phase == "suspecting":
        return state, ()
    deadline_at_s = now_s + policy.patience_s
    suspecting = _replace(state, phase="suspecting", deadline_at_s=deadline_at_s, detected_at_s=now_s)
    return suspecting, (WakeAt(deadline_at_s),)


def _tick(policy: Policy, state: JobState, now_s: float) -> Step:
    if state.deadline_at_s is None or now_s < state.deadline_at_s:
        return state, ()
    if state.phase == "suspecting":
        return _end_others(policy, state, now_s)
    return _end(state)


def _stop(policy: Policy, state: JobState, event: SignalReceived, now_s: float) -> Step:
    if state.phase == "new":
        return _replace(state, phase="over"), (_stopped(event.signal),)
    stopping = _replace(state, phase="stopping", stop_signal=_first(state.stop_signal, event.signal))
    if event.again or not state.live:
        return _end(stopping)
    if state.phase == "stopping":
        return stopping, ()
    deadline_at_s = now_s + policy.shutdown_timeout_s
    return _replace(stopping, deadline_at_s=deadline_at_s), (
        SignalWorkers(attempt=state.attempt, signal=event.signal),
        WakeAt(deadline_at_s),
    )


def _trouble(state: JobState, message: str, now_s: float) -> Step:
    detected_at_s = _first(state.detected_at_s, now_s)
    return _end(_replace(state, phase="ending", trouble=state.trouble or message, detected_at_s=detected_at_s))


def _attempt_ended(policy: Policy, state: JobState, event: AttemptEnded, now_s: float) -> Step:
    over = _replace(state, phase="over")
    if state.stop_signal is not None:
        return over, (_stopped(state.stop_signal),)
    verdict = _trouble_verdict(state) if state.trouble else attribute(event.ranks)
    if verdict is None:
        return over, (Finish(exit_code=0, outcome="done"),)
    limits = Limits(max_restarts=policy.max_restarts, progress_after_s=policy.progress_after_s)
    trail, decision = decide(state.trail, verdict, event.progress, limits)
    failures = filter(None, map(own_failure, event.ranks))
    incident = RecordIncident(
        attempt=state.attempt,
        symptom="worker_failed" if not state.trouble else "platform",
        onset_at_s=min((failure.at_s for failure in failures), default=now_s),
        detected_at_s=_first(state.detected_at_s, now_s),
        verdict=verdict,
        action="relaunch" if decision.relaunch else "stop",
        reason=decision.reason,
    )
    if not decision.relaunch:
        finish = Finish(exit_code=verdict.exit_code, outcome="failed", reason=decision.reason)
        return _replace(over, trail=trail), (incident, finish)
    started, actions = _start(policy, _replace(state, trail=trail), state.attempt + 1)
    return started, (incident, *actions)


def _trouble_verdict(state: JobState) -> VerdictDraft:
    return VerdictDraft(
        kind="node_fault", ranks=(), confidence="high", rule="platform", sentence=state.trouble, exit_code=1
    )


def _stopped(signal: int) -> Finish:
    return Finish(exit_code=128 + signal, outcome="stopped", reason=f"stopped by {signal_name(signal)}")


def _first(value: float | int | None, otherwise: float | int) -> float | int:
    return otherwise if value is None else value
