"""Nodes that are told to leave, with a moment before they go: whether all of them are told, and so the job is to end.

How it is known: each agent that is told says so at once, trains on for `departure.TOGETHER_S`, and then leaves. If every node
that is present is told meanwhile, nobody is left who could go on: the job ends as a whole, once, from the attempt that runs.
Else those that were told leave, and the job goes on with the others, as after any node that leaves.

What looks the same. The first pod of a job that is deleted and a pod that is drained are told by the same signal: only the
others' signals tell them apart, or that none comes. A drain of all nodes at once is the end of the job; what is made anew begins
again, from the state that was written. Pods that are told more than `TOGETHER_S` apart look like drains one after the
other: the job is then without enough nodes, or without a candidate, when the last is told, and ends there.

Until the last node that was told has left, no attempt begins: it might be ended a second later. A node that was told is given
no place, and does not stand by. What comes later: a node of the same name is another agent and is not told. One that was lost
meanwhile and is back says again that it was told. A starved machine leaves later; a starved controller may hear that a
node left before it hears that others were told, and then the next leader ends the job.
"""

from __future__ import annotations

from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Action, JobEnds
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.node_events import NodeToldToLeave
from robust_run.signals import signal_name


def take(state: JobState, event: NodeToldToLeave | SignalReceived) -> tuple[list[Action], SignalReceived | None]:
    """Take in that a node was told, or that the job ends while some were; return what they hear, and what ends the job."""
    if isinstance(event, SignalReceived):
        return _stay(state), event
    member = state.members.get(event.node)
    if member is None or not member.present:
        return [], None
    if event.node not in state.told:
        state.usable -= member.info.name not in state.evicted
        state.told.add(event.node)
    if state.stop_signal is not None:
        return [JobEnds(nodes=(event.node,))], None
    if any(each.present and each.info.id not in state.told for each in state.members.values()):
        return [], None
    return _stay(state), SignalReceived(signal=event.signal, by=f"{signal_name(event.signal)} on all nodes")


def _stay(state: JobState) -> list[Action]:
    return [JobEnds(nodes=tuple(sorted(state.told)))]
