"""Transition function of the job state machine: from one event to the next state and its actions.

    gathering ──enough nodes──► opening ──StoreOpened──► running ──all ranks ended well──► ending ──► Finish
        ▲                          │        a rank lost its connection, peers alive │
        │                          │                                suspecting ◄────┤
        │                          │                                     │          │ a rank failed, a node went,
        │                          ▼                                     ▼          ▼ an operator asked
        └──every node said AttemptEnded, or is lost──◄───────────── ending ◄────────┘
    ending ──the ladder wants it──► diagnosing or replaying ──► gathering or Finish (see `core.ladder.ladder`, `core.replaying`)
    a signal or `robust stop`, at any time: stopping ──every node ended──► Finish

With --ckpt-dir, workers are started when the store is open and it is chosen where they resume from (`core.resume.resuming`).

An attempt is over when nothing of it can still run anywhere: each node has said so, or has been silent for so long that it
has ended its workers by itself. Only then is the next one started.
"""

from __future__ import annotations

from collections.abc import Iterable

from robust_run.launcher.core import attempt_events, nodes
from robust_run.launcher.core.attempts import (
    begin,
    end_attempt,
    failure_ending,
    stopped,
    try_to_gather,
)
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, EndAttempt, Inquire
from robust_run.launcher.model.check_events import Diagnosed, StandbyChecked
from robust_run.launcher.model.code_events import CodeEvent
from robust_run.launcher.model.events import (
    AttemptEnded,
    Event,
    GuardLost,
    Inquired,
    LimitNear,
    SignalReceived,
    Tick,
)
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    JobStarted,
    LeaseRecorded,
    NodeEvicted,
    NodeReadmitted,
    NodeToldToLeave,
    RestartAsked,
)
from robust_run.launcher.model.resume_events import CheckpointSaved, SavedCheckpoint

SIGKILL = 9

#: Phases in which it is concluded as soon as nothing of it can run anywhere any more.
ENDED = ("ending", "stopping", "replaying")

Step = tuple[JobState, tuple[Action, ...]]


def step(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> Step:
    """Change the state by one event; return it and what is to be done now.

    Never raises; late or repeated events change nothing.
    """
    return state, tuple(_take(policy, state, event, now_s))


def replay(policy: CorePolicy, events: Iterable[tuple[Event, float]], before: JobState | None = None) -> JobState:
    """Return the state that these events lead to: what a restarted controller continues from.

    `before`: the state that earlier ones have led to, which is changed in place; None: they are all there are.
    """
    state = JobState() if before is None else before
    for event, now_s in events:
        _take(policy, state, event, now_s)
    return state


def _take(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action]:
    if isinstance(event, ControllerResumed) and state.ladder_state:
        from robust_run.launcher.core.ladder import ladder_state

        ladder_state.resumed(state, now_s)
    if isinstance(event, ControllerResumed) and event.restart > state.restart:
        from robust_run.launcher.core.reopen import reopen  # for a job that a scheduler started again only

        reopen(state, event.restart)
        state.term = max(state.term, event.term)
        return begin(policy, state, now_s)
    if isinstance(event, (AttemptEnded, CheckpointSaved)) and event.saved is not None:
        _note_saved(state, event.saved)
    if state.is_over:
        return nodes.too_late(state, event)
    if state.awaits_post_mortem:
        state.awaits_post_mortem = False
        if not isinstance(event, ControllerResumed):  # its controller died before the answer: concluded below, without
            return _conclude_with(policy, state, event, now_s)
    if isinstance(event, NodeToldToLeave) or (state.told and isinstance(event, SignalReceived)):
        from robust_run.launcher.core import leaving_together

        stays, stop = leaving_together.take(state, event)
        return stays if stop is None else stays + _take_living(policy, state, stop, now_s)
    return _take_living(policy, state, event, now_s)


def _take_living(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action]:
    if state.phase == "replaying":
        from robust_run.launcher.core import replay_groups

        taken = replay_groups.take(policy, state, event, now_s)
        if taken is not None:
            return taken
    was_quiet, wants_post_mortem = state.is_quiet, _wants_post_mortem(state, event)
    taken = _taken(policy, state, event, now_s)
    if state.is_quiet and state.phase in ENDED and (not was_quiet or isinstance(event, ControllerResumed)):
        if wants_post_mortem:
            state.awaits_post_mortem = True
            return [*taken, Inquire(attempt=state.attempt, post_mortem=True)]
        from robust_run.launcher.core import conclusion

        return taken + conclusion.conclude(policy, state, now_s)
    return taken


def _wants_post_mortem(state: JobState, event: Event) -> bool:
    """Whether this is the last end of an attempt that failed, nothing else says why, and its ranks left something behind."""
    if not isinstance(event, AttemptEnded) or not event.has_sights or event.attempt != state.attempt:
        return False
    is_last = state.unended == {event.node} and not state.strays
    return is_last and state.is_ending and not state.all_well and state.traced is None and not state.causes


def _conclude_with(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action]:
    """Conclude an attempt with what its ranks left behind; without, if the journal lost the answer."""
    from robust_run.launcher.core import conclusion

    is_answer = isinstance(event, Inquired) and event.attempt == state.attempt
    taken = _taken(policy, state, event, now_s) if is_answer else []
    taken += conclusion.conclude(policy, state, now_s)
    return taken if is_answer else taken + _take(policy, state, event, now_s)


def _taken(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action]:
    for take in (attempt_events.take, nodes.take, _take_of_job):
        taken = take(policy, state, event, now_s)
        if taken is not None:
            return taken
    return _take_rare(policy, state, event, now_s)


def _take_of_job(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action] | None:
    """Take in what happened to the job as a whole, the time included; None: that is not what the event is about."""
    match event:
        case Tick():
            return _tick(policy, state, now_s)
        case RestartAsked() if state.is_going:
            return nodes.restart_asked(policy, state, event, now_s)
        case SignalReceived():
            return _stop(policy, state, event)
        case LimitNear(near=near):
            state.limit_is_near = near
            return []
        case GuardLost():
            state.stop_signal = SIGKILL
            return _stop(policy, state, SignalReceived(signal=SIGKILL, again=True))
        case LeaseRecorded():
            state.lost_after_s = event.lost_s
            return []
        case JobStarted() if state.phase == "new":
            state.restart, state.first_needs = event.restart, event.needs
            state.hold_until_s = now_s + event.hold_s if event.hold_s else None
            return begin(policy, state, now_s)
        case ControllerResumed():
            from robust_run.launcher.core import controller_recovery as away

            return away.resumed(policy, state, event, now_s)
        case _:
            return None


def _take_rare(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action]:
    """Take in what sensors, checks and versions of the code are about; not imported for a job that does not know them."""
    if isinstance(event, HealthSeen):
        from robust_run.launcher.core.diagnosis import health

        return health.seen(policy, state, event, now_s)
    if isinstance(event, (NodeEvicted, NodeReadmitted)):
        from robust_run.launcher.core import evictions

        return evictions.take(policy, state, event, now_s)
    if isinstance(event, (Diagnosed, StandbyChecked)):
        from robust_run.launcher.core.ladder import ladder

        return ladder.take(policy, state, event, now_s)
    if not isinstance(event, CodeEvent):
        return []
    from robust_run.launcher.core import versions

    return versions.take(policy, state, event, now_s)


def _note_saved(state: JobState, saved: SavedCheckpoint) -> None:
    """A checkpoint was there: of any attempt, and however late that is said."""
    from robust_run.launcher.core.resume import resuming

    resuming.saved(state, saved)


def _tick(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    if state.deadline_at_s is None or now_s < state.deadline_at_s:
        return []
    state.deadline_at_s = None
    if state.phase == "suspecting":
        return end_attempt(state, failure_ending(policy, state))
    if state.phase == "gathering":
        return try_to_gather(policy, state, now_s)
    if state.phase == "running":
        from robust_run.launcher.core.resume import leftovers

        return leftovers.tick(policy, state, now_s)
    return []


def _stop(policy: CorePolicy, state: JobState, event: SignalReceived) -> list[Action]:
    if state.stop_signal is None:
        state.stop_signal, state.stopped_by = event.signal, event.by
    if state.phase in ("new", "gathering", "diagnosing") and not state.strays:
        return stopped(state)
    before, state.phase = state.phase, "stopping"
    if event.again:
        from robust_run.launcher.core.unknown_attempts import end_strays_now

        return end_attempt(state, EndAttempt(attempt=state.attempt)) + end_strays_now(state)
    if before == "stopping" or (before == "ending" and not _is_ended_by_leaving(state)):
        return []
    return end_attempt(
        state,
        EndAttempt(
            attempt=state.attempt,
            signal=event.signal,
            grace_s=policy.shutdown_timeout_s,
            leftovers_s=policy.restart_grace_s,
        ),
    )


def _is_ended_by_leaving(state: JobState) -> bool:
    """Whether it began with a node that was told to go: a scheduler that stops a job reaches some nodes before others."""
    return any(cause.kind == "left" and cause.at_s == state.detected_at_s for cause in state.causes)
