"""Eviction events: a host is taken out of the job, or let in again. Imported when the first is."""

from __future__ import annotations

from robust_run.launcher.core.attempts import try_to_gather
from robust_run.launcher.core.membership import evicted_text, let_in, put_out
from robust_run.launcher.core.nodes import cause_of, end_because
from robust_run.launcher.core.state import CorePolicy, JobState
from robust_run.launcher.model.actions import Action, Say
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted


def take(policy: CorePolicy, state: JobState, event: NodeEvicted | NodeReadmitted, now_s: float) -> list[Action]:
    """Take in that a host is out, or in again."""
    if isinstance(event, NodeEvicted):
        return evicted(policy, state, event, now_s)
    return readmitted(policy, state, event, now_s)


def evicted(policy: CorePolicy, state: JobState, event: NodeEvicted, now_s: float) -> list[Action]:
    """Take a host out: an attempt it is part of ends, and none will use it until it is readmitted."""
    if event.name in state.evicted:
        return []
    on_record = put_out(state, event)
    there = [member.info.id for member in state.members.values() if member.info.name == event.name and member.present]
    actions: list[Action] = [*on_record, *(Say(text=evicted_text(state, event.name), node=node) for node in there)]
    used = [node for node in there if node in state.unended]
    for node in used:
        text = f"node {event.name} was evicted by {event.by}" + (f": {event.reason}" if event.reason else "")
        actions += end_because(policy, state, cause_of(state, "evicted", node, text, now_s), now_s)
    if state.phase == "gathering":
        actions += try_to_gather(policy, state, now_s)
    return actions


def readmitted(policy: CorePolicy, state: JobState, event: NodeReadmitted, now_s: float) -> list[Action]:
    """Let a host be used again, from the next attempt on."""
    if not let_in(state, event.name):
        return []
    text = f"readmitted by {event.by}; this node stands by"
    actions: list[Action] = [
        Say(text=text, node=member.info.id)
        for member in state.members.values()
        if member.info.name == event.name and member.present
    ]
    return actions + (try_to_gather(policy, state, now_s) if state.phase == "gathering" else [])
