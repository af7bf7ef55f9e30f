"""Node events: a node joins, returns, is lost, or is evicted."""

from __future__ import annotations

from typing import Literal

import msgspec

from robust_run.launcher.core.attempts import are_arriving, end_attempt, try_to_gather
from robust_run.launcher.core.membership import counts, evicted_text, let_in, name_of, placement_of, put_out, ranks_of
from robust_run.launcher.core.state import CorePolicy, EndCause, JobState, Member
from robust_run.launcher.model.actions import Action, Dismiss, EndAttempt, Say
from robust_run.launcher.model.events import AttemptEnded, Event
from robust_run.launcher.model.node_events import (
    ControllerResumed,
    NodeCannotStart,
    NodeEvicted,
    NodeJoined,
    NodeLeft,
    NodeLost,
    NodeReadmitted,
    NodeReturned,
    RestartAsked,
)
from robust_run.launcher.model.resume_events import MemoryGroups, MemoryNeeds, MemoryReady

SIGTERM = 15


def take(policy: CorePolicy, state: JobState, event: Event, now_s: float) -> list[Action] | None:
    """Take in what happened to a node; None: that is not what the event is about."""
    match event:
        case NodeJoined():
            ends = _strayed(policy, state, event.node.id, event.attempt, now_s)
            follows = joined(policy, state, event, now_s)
            return [*ends, *_share_blocks(policy, state, event, now_s), *follows]
        case NodeReturned():
            from robust_run.launcher.core import controller_recovery as away

            ends = _strayed(policy, state, event.node, event.attempt, now_s)
            missed = away.repeat(state, event.node)  # before its return opens an attempt
            return ends + missed + returned(policy, state, event, now_s)
        case NodeLost():
            return lost(policy, state, event, now_s)
        case NodeLeft():
            return left(policy, state, event, now_s)
        case NodeCannotStart():
            return cannot_start(policy, state, event, now_s)
        case MemoryNeeds():
            from robust_run.launcher.core.resume import strides

            return strides.take(state, event)
        case MemoryReady() | MemoryGroups():
            from robust_run.launcher.core.resume import peers

            return peers.take(state, event)
        case _:
            return None


def _share_blocks(policy: CorePolicy, state: JobState, event: NodeJoined, now_s: float) -> list[Action]:
    if not event.node.blocks or (state.phase == "gathering" and are_arriving(policy, state, now_s)):
        return []
    from robust_run.launcher.core import block_sharing

    return [*block_sharing.joined(state, event.node.id)]


def too_late(state: JobState, event: Event) -> list[Action]:
    """Answer an event of a job that is over: an agent that still comes is sent home.

    Who is evicted goes on changing: the journal has it, and a scheduler may start the job again.
    """
    if isinstance(event, ControllerResumed):
        state.term = max(state.term, event.term)
        return [state.finish] if state.finish is not None else []
    if isinstance(event, (NodeJoined, NodeReturned)) and state.finish is not None:
        node = event.node.id if isinstance(event, NodeJoined) else event.node
        return [Dismiss(node=node, exit_code=state.finish.exit_code, reason="the job is over")]
    if isinstance(event, NodeEvicted):
        return [*put_out(state, event)]
    if isinstance(event, NodeReadmitted):
        let_in(state, event.name)
    return []


def joined(policy: CorePolicy, state: JobState, event: NodeJoined, now_s: float) -> list[Action]:
    """Take a new agent in: it is used at once where the job waits for nodes, else it stands by."""
    info = event.node
    if info.id in state.members:
        return returned(policy, state, NodeReturned(node=info.id), now_s)
    state.unable.pop(info.name, None)
    if state.health.active and not any(each.present and each.info.name == info.name for each in state.members.values()):
        from robust_run.launcher.core.diagnosis import health_record

        health_record.begin_anew(state, info.name)
    state.members[info.id] = Member(info=info, joined=len(state.members), since_s=now_s)
    if info.name in state.evicted:
        return [Say(text=evicted_text(state, info.name), node=info.id)]
    state.usable += 1
    if state.phase == "gathering":
        return try_to_gather(policy, state, now_s)
    if state.phase == "new" or info.id in state.strays:
        return []
    anew: list[Action] = []
    if state.phase == "diagnosing":
        from robust_run.launcher.core.diagnosis import failure as diagnosis

        anew = diagnosis.replaced(policy, state, info.name)
    return [*anew, *([Say(text=f"{info.name} joined and stands by", node="")] if policy.many and not anew else [])]


def returned(policy: CorePolicy, state: JobState, event: NodeReturned, now_s: float) -> list[Action]:
    """Take an agent back: one that was lost has ended its workers, and stands by. One that is leaving stays on its way."""
    member = state.members.get(event.node)
    if member is None or member.gone != "lost":
        return []
    member.gone, member.present, member.reason, member.since_s = "", True, "", now_s
    if member.info.name in state.evicted:
        return [Say(text=evicted_text(state, member.info.name), node=event.node)]
    state.usable += 1
    if state.phase == "gathering":
        return try_to_gather(policy, state, now_s)
    return [Say(text=f"{member.info.name} is back and stands by")]


def _goes(state: JobState, member: Member, gone: Literal["lost", "left"], reason: str, now_s: float) -> None:
    state.usable -= counts(state, member)
    state.told.discard(member.info.id)
    member.gone, member.present, member.reason, member.since_s = gone, False, reason, now_s
    member.checked = ""  # it may come back as another
    state.memory_at.pop(member.info.id, None)


def lost(policy: CorePolicy, state: JobState, event: NodeLost, now_s: float) -> list[Action]:
    """A node is silent and has ended its workers by itself by now."""
    member = state.members.get(event.node)
    if member is None:
        return []
    was_leaving, was_there = member.gone == "left", not member.gone
    if was_there:
        _goes(state, member, "lost", f"silent for {event.silent_s:.1f} s" if event.silent_s else "gone", now_s)
    if event.node in state.strays:
        from robust_run.launcher.core.unknown_attempts import stray_ended

        return stray_ended(policy, state, event.node, now_s)
    if event.node in state.unended:
        text = f"node {member.info.name} {_silence(event.silent_s)}"
        cause = cause_of(state, "lost", event.node, text, now_s - event.silent_s)
        cause = msgspec.structs.replace(cause, stood_s=event.stood_s)
        return _without(policy, state, event.node, None if was_leaving else cause, now_s)
    if state.phase == "gathering":
        return try_to_gather(policy, state, now_s)
    if not was_there:
        return []
    return [Say(text=f"node {member.info.name} stopped answering"), *_without_copies(state, event.node)]


def _without_copies(state: JobState, node: str) -> list[Action]:
    """Have another standby keep the copies that a standby kept which went."""
    if node not in state.memory_keeps or node in state.places:
        return []
    from robust_run.launcher.core.resume import peers

    return peers.anew(state)


def _silence(silent_s: float) -> str:
    if silent_s:
        return f"stopped answering ({silent_s:.1f} s of silence)"
    return "is gone, with the launcher that was there before"  # it was not waited for


def left(policy: CorePolicy, state: JobState, event: NodeLeft, now_s: float) -> list[Action]:
    """A node goes in good order; it says AttemptEnded when its workers have ended."""
    member = state.members.get(event.node)
    if member is None or member.gone:
        return []
    _goes(state, member, "left", event.reason, now_s)
    if event.node in state.unended:
        cause = cause_of(state, "left", event.node, f"node {member.info.name} left: {event.reason}", now_s)
        return end_because(policy, state, cause, now_s)
    if state.phase == "gathering":
        return try_to_gather(policy, state, now_s)
    return [Say(text=f"{member.info.name} left: {event.reason}"), *_without_copies(state, event.node)]


def cannot_start(policy: CorePolicy, state: JobState, event: NodeCannotStart, now_s: float) -> list[Action]:
    """A node will not come: before the first attempt nobody waits for it in vain."""
    if event.name in state.unable:
        return []
    state.unable[event.name] = event.reason
    said: list[Action] = [Say(text=f"{event.name} cannot start the job: {event.reason}")]
    return said + (try_to_gather(policy, state, now_s) if state.phase == "gathering" else [])


def restart_asked(policy: CorePolicy, state: JobState, event: RestartAsked, now_s: float) -> list[Action]:
    """End the attempt so that the next one starts."""
    text = f"a restart was asked for by {event.by}" + (f": {event.reason}" if event.reason else "")
    return end_because(policy, state, EndCause(kind="asked", at_s=now_s, text=text), now_s)


def _strayed(policy: CorePolicy, state: JobState, node: str, attempt: int, now_s: float) -> list[Action]:
    if attempt < 0:
        return []
    from robust_run.launcher.core.unknown_attempts import strayed  # a node that is new to the job runs none

    return strayed(policy, state, node, attempt, now_s)


def note_own_end(state: JobState, event: AttemptEnded, now_s: float) -> None:
    """A node ended its workers unasked: it was cut off and is back already, or it leaves and could not say so in time."""
    name, after_s = name_of(state, event.node), event.fenced_after_s
    if after_s is not None:
        text = f"node {name} could not reach the controller for {after_s:.1f} s and ended its workers"
        cause = cause_of(state, "fenced", event.node, text, now_s - after_s)
        if state.hold_until_s is not None and now_s < state.hold_until_s:
            cause = msgspec.structs.replace(cause, node="")  # the controller was away, whoever is to blame for that
        state.causes.append(cause)
    elif state.ending is None:
        from robust_run.launcher.core.diagnosis.verdict import own_failure

        if any(map(own_failure, event.ranks)):
            return
        state.causes.append(cause_of(state, "left", event.node, f"node {name} ended its workers by itself", now_s))
    else:
        return
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s


def cause_of(state: JobState, kind: str, node: str, text: str, at_s: float) -> EndCause:
    """Return what of a node ends an attempt."""
    placement = placement_of(state, node)
    ranks = tuple(ranks_of(placement)) if placement is not None else ()
    return EndCause(kind=kind, at_s=at_s, node=name_of(state, node), ranks=ranks, text=text)  # type: ignore[arg-type]


def _without(policy: CorePolicy, state: JobState, node: str, cause: EndCause | None, now_s: float) -> list[Action]:
    """Go on without a node of the attempt that can run nothing any more."""
    placement = placement_of(state, node)
    state.unended.discard(node)
    actions: list[Action] = []
    if placement is not None:
        state.live.difference_update(ranks_of(placement))
    if cause is not None:
        actions = end_because(policy, state, cause, now_s)
    return actions


def end_because(policy: CorePolicy, state: JobState, cause: EndCause, now_s: float) -> list[Action]:
    """End the running attempt for this cause, among others."""
    state.causes.append(cause)
    state.detected_at_s = now_s if state.detected_at_s is None else state.detected_at_s
    if not state.is_going:
        return []
    return end_attempt(state, EndAttempt(attempt=state.attempt, signal=SIGTERM, grace_s=policy.restart_grace_s))
