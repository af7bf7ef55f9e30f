"""Event handling of a replay: what follows from what its groups do while they run. Pure.

Which groups there are, and what follows when all of them are over, is `core.replaying`'s to say.
"""

from __future__ import annotations

import msgspec

from robust_run.launcher.core import evictions
from robust_run.launcher.core import nodes as membership
from robust_run.launcher.core.attempts import stopped
from robust_run.launcher.core.ladder.ladder_state import GroupRun, ReplayRun, ladder_state_of, remember
from robust_run.launcher.core.membership import awaits_resume, name_of, ranks_of
from robust_run.launcher.core.replaying import pass_over
from robust_run.launcher.core.resume import resuming
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, EndAttempt, StartAttempt
from robust_run.launcher.model.check_events import ReplayStepped
from robust_run.launcher.model.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    RankExited,
    SignalReceived,
    SpawnFailed,
    StoreLost,
    StoreOpened,
    Tick,
)
from robust_run.launcher.model.node_events import ControllerResumed, NodeEvicted, NodeLeft, NodeLost, NodeReturned
from robust_run.launcher.model.resume_events import NoResumePoint, ResumeChosen

SIGTERM = 15


def take(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action] | None:  # noqa: C901, PLR0912 - the table
    """Return what follows from an event of a replay; None where it is an event like any other."""
    run = ladder_state_of(state).replay
    if run is None:
        return None
    match event:
        case StoreOpened(attempt=attempt) if _of(run, attempt) is not None:
            return _opened(state, _of(run, attempt), event)
        case ResumeChosen(attempt=attempt) if awaits_resume(state, attempt):
            return _chosen(state, _of(run, attempt), event)
        case NoResumePoint(attempt=attempt, reason=reason) if awaits_resume(state, attempt):
            return _end(policy, state, _of(run, attempt), "broken", reason)
        case RankExited(attempt=attempt, rank=rank, exit_code=code) if _of(run, attempt) is not None:
            return _exited(policy, state, _of(run, attempt), rank, code)
        case ReplayStepped(attempt=attempt, node=node) if _of(run, attempt) is not None:
            return _stepped(policy, state, _of(run, attempt), node)
        case SpawnFailed(attempt=attempt, message=message) if _of(run, attempt) is not None:
            return _end(policy, state, _of(run, attempt), "failed", message)
        case StoreLost(attempt=attempt, detail=detail) if _of(run, attempt) is not None:
            return _end(policy, state, _of(run, attempt), "failed", detail)
        case AttemptStarted(attempt=attempt) if _of(run, attempt) is not None:
            return []
        case AttemptEnded(attempt=attempt, node=node) if _of(run, attempt) is not None:
            _note_damage(state, _of(run, attempt), event)
            return _node_ended(policy, state, _of(run, attempt), node, now_s)
        case NodeReturned(node=node) if node in state.unended:
            return _repeated(policy, run, node) + membership.returned(policy, state, event, now_s)
        case NodeLost() | NodeLeft() if event.node in state.unended:
            gone = membership.lost if isinstance(event, NodeLost) else membership.left
            ends = _give_up(policy, state, f"{name_of(state, event.node)} is gone")
            return ends + gone(policy, state, event, now_s)  # type: ignore[arg-type]
        case NodeEvicted(name=name) if any(name_of(state, node) == name for node in state.unended):
            return _give_up(policy, state, f"{name} was evicted") + evictions.evicted(policy, state, event, now_s)
        case ControllerResumed():
            return _resumed(policy, state, event, now_s)
        case SignalReceived():
            return _stop(policy, state, event)
        case Tick():
            return _time_is_up(policy, state, now_s)
        case _:
            return None


def _of(run: ReplayRun, attempt: int) -> GroupRun | None:
    return next((each for each in run.runs if each.attempt == attempt), None)


def _put(state: JobState, changed: GroupRun) -> None:
    ladder_state = ladder_state_of(state)
    assert ladder_state.replay is not None
    runs = tuple(changed if each.attempt == changed.attempt else each for each in ladder_state.replay.runs)
    remember(
        state, msgspec.structs.replace(ladder_state, replay=msgspec.structs.replace(ladder_state.replay, runs=runs))
    )


def _opened(state: JobState, one: GroupRun | None, event: StoreOpened) -> list[Action]:
    assert one is not None
    if one.port or one.outcome:
        return []
    live = tuple(rank for placement in one.layout for rank in ranks_of(placement))
    one = msgspec.structs.replace(one, address=event.address, port=event.port, live=live)
    _put(state, one)
    return _go(state, one)


def _chosen(state: JobState, one: GroupRun | None, event: ResumeChosen) -> list[Action]:
    assert one is not None
    one = msgspec.structs.replace(one, resume=event.point())
    _put(state, one)
    return _go(state, one)


def _go(state: JobState, one: GroupRun) -> list[Action]:
    """Have the workers of a group started, once their store is open and it is known where they start from."""
    ladder_state = ladder_state_of(state)
    assert ladder_state.replay is not None
    return [_order(state, one, ladder_state.replay.steps)] if one.port and not awaits_resume(state, one.attempt) else []


def _order(state: JobState, one: GroupRun, steps: int, only: str = "") -> StartAttempt:
    code = None
    if state.code.records:
        from robust_run.launcher.core import ledger_queries as queries

        code = queries.use(state.code)
    last = one.layout[-1]
    return StartAttempt(
        attempt=one.attempt,
        address=one.address,
        port=one.port,
        placements=tuple(each for each in one.layout if only in ("", each.node)),
        world_size=last.first_rank + last.nproc,
        nodes=len(one.layout),
        code=code,
        resume=one.resume,
        replay_steps=steps,
    )


def _exited(policy: CorePolicy, state: JobState, one: GroupRun | None, rank: int, code: int) -> list[Action]:
    assert one is not None
    if one.outcome:
        return []
    if code != 0:
        return _end(policy, state, one, "failed", f"rank {rank} ended with {code}")
    one = msgspec.structs.replace(one, live=tuple(each for each in one.live if each != rank))
    _put(state, one)
    return [] if one.live else _end(policy, state, one, "passed", "it ended well")


def _stepped(policy: CorePolicy, state: JobState, one: GroupRun | None, node: str) -> list[Action]:
    assert one is not None
    if one.outcome or node in one.stepped:
        return []
    one = msgspec.structs.replace(one, stepped=(*one.stepped, node))
    _put(state, one)
    return _end(policy, state, one, "passed", "it made its steps") if len(one.stepped) == len(one.layout) else []


def _end(policy: CorePolicy, state: JobState, one: GroupRun | None, outcome: str, why: str) -> list[Action]:
    """Have the nodes of a group end it; what is known of it is settled."""
    assert one is not None
    if one.outcome:
        return []
    one = msgspec.structs.replace(one, outcome=outcome, why=why)
    _put(state, one)
    return [_end_order(policy, one, tuple(each.node for each in one.layout if each.node in state.unended))]


def _end_order(policy: CorePolicy, one: GroupRun, only: tuple[str, ...]) -> EndAttempt:
    return EndAttempt(attempt=one.attempt, signal=SIGTERM, grace_s=policy.restart_grace_s, only=only)


def _note_damage(state: JobState, one: GroupRun | None, event: AttemptEnded) -> None:
    """A group that could not read what it was to start from says nothing of its nodes."""
    if event.damage is None or one is None or event.node not in state.unended:
        return
    resuming.damaged(state, event)
    _put(state, msgspec.structs.replace(one, outcome="broken", why=event.damage.reason))


def _node_ended(policy: CorePolicy, state: JobState, one: GroupRun | None, node: str, now_s: float) -> list[Action]:
    assert one is not None
    if node not in state.unended or node not in [each.node for each in one.layout]:
        return []
    state.unended.discard(node)
    ends = _end(policy, state, one, "broken", f"{name_of(state, node)} ended it") if not one.outcome else []
    return ends + _if_quiet(policy, state, now_s)


def _if_quiet(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    if not state.is_quiet:
        return []
    return stopped(state) if state.stop_signal is not None else pass_over(policy, state, now_s)


def _time_is_up(policy: CorePolicy, state: JobState, now_s: float) -> list[Action]:
    """Groups that have not failed by now have lived for long enough."""
    if state.deadline_at_s is None or now_s < state.deadline_at_s:
        return []
    state.deadline_at_s = None
    run = ladder_state_of(state).replay
    assert run is not None
    ends: list[Action] = []
    for each in run.runs:
        has_run = each.port and not awaits_resume(state, each.attempt)
        ends += _end(policy, state, each, "passed" if has_run else "broken", "its time is up")
    return ends


def _give_up(policy: CorePolicy, state: JobState, why: str) -> list[Action]:
    ladder_state = ladder_state_of(state)
    assert ladder_state.replay is not None
    if not ladder_state.replay.given_up:
        remember(
            state,
            msgspec.structs.replace(ladder_state, replay=msgspec.structs.replace(ladder_state.replay, given_up=why)),
        )
    ends: list[Action] = []
    for each in ladder_state.replay.runs:
        ends += _end(policy, state, each, "broken", why)
    return ends


def _repeated(policy: CorePolicy, run: ReplayRun, node: str) -> list[Action]:
    """Have a node that was away end what it may run: it missed something, and so did its group."""
    return [_end_order(policy, each, (node,)) for each in run.runs if any(place.node == node for place in each.layout)]


def _resumed(policy: CorePolicy, state: JobState, event: ControllerResumed, now_s: float) -> list[Action]:
    """A replay does not outlive its controller: nodes end it when they return, or have by themselves."""
    state.term = max(state.term, event.term)
    state.hold_until_s = now_s + event.hold_s if event.hold_s else None
    state.deadline_at_s = None
    return _give_up(policy, state, "the controller was restarted") + _if_quiet(policy, state, now_s)


def _stop(policy: CorePolicy, state: JobState, event: SignalReceived) -> list[Action]:
    if state.stop_signal is None:
        state.stop_signal, state.stopped_by = event.signal, event.by
    run = ladder_state_of(state).replay
    assert run is not None
    ends = _give_up(policy, state, "the job is being stopped")
    if event.again:
        return [EndAttempt(attempt=each.attempt, only=tuple(p.node for p in each.layout)) for each in run.runs]
    return ends
