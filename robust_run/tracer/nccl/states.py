"""Where a flow stands, what may wait for what inside NCCL, and the causes at which waiting ends. Pure.

Mycroft's table of the states of a flow (arXiv 2509.03018, table 2), for both ends:

=================  ============================  ==================================  =========================
state              sender                        receiver                            cause
=================  ============================  ==================================  =========================
not_started        no buffer is offered          the network is offered no buffer    local: the proxy thread
gpu_not_ready      the GPU fills none            the GPU does not consume            the GPU, or what it needs
not_transmitted    the network takes none        -                                   here, or no buffer there
not_flushed        -                             it has come and is not flushed      local: the NIC
not_delivered      taken, and not delivered      nothing comes                       the network, or the peer
=================  ============================  ==================================  =========================
"""

from __future__ import annotations

from typing import NamedTuple

from robust_run.tracer.nccl.teams import FlowKey, TeamFlow
from robust_run.tracer.nccl.types import FaultKind, FlowCause, FlowState


class FlowVertex(NamedTuple):
    """A flow that is stuck."""

    team: int
    key: FlowKey


class GpuVertex(NamedTuple):
    """What the GPU of a member does for one operation on one channel."""

    team: int
    member: int
    channel: int
    half: str


class HostVertex(NamedTuple):
    """A rank that has not made a call which others wait for."""

    world: int
    team: int


class Cause(NamedTuple):
    """Where waiting ends."""

    kind: FaultKind
    state: FlowState
    worlds: tuple[int, ...]
    """At fault; more than one where they cannot be told apart. Empty: a member that no sight is of."""
    team: int
    member: int
    flow: FlowKey | None
    """The flow in which it was seen."""
    link: tuple[int, int] | None = None
    """Sender and receiver (of the world) between which it is."""
    untold: bool = False
    """Of a GPU with interface v3: it may be the network that does not take what the GPU has filled."""
    unsure: bool = False
    """Of a proxy thread of which is not known whether it runs, nor what the network is: that may not have brought the data."""


Vertex = FlowVertex | GpuVertex | HostVertex
Reason = Vertex | Cause


def state_of(seen: TeamFlow) -> FlowState:
    """Return where a flow stands: the rung nearest to its end on which steps wait."""
    flow = seen.flow
    if not seen.pending:
        return "idle" if flow.open_ops == 0 else "played"
    if flow.direction == "send":
        if flow.transmitted > flow.done:
            return "not_delivered"
        if flow.gpu_ready > flow.transmitted:
            return "not_transmitted"
        return "gpu_not_ready" if flow.posted > flow.gpu_ready else "not_started"
    if flow.transmitted > flow.done:
        return "gpu_not_ready"
    if flow.gpu_ready > flow.transmitted:
        return "not_flushed"
    return "not_delivered" if flow.posted > flow.gpu_ready else "not_started"


def cause_of(seen: TeamFlow, other: TeamFlow | None) -> FlowCause:
    """Return where the cause of a flow's state is, as far as its own two ends tell."""
    state = state_of(seen)
    if state in ("idle", "played"):
        return "none"
    if state in ("not_started", "not_flushed"):
        return "local"
    if state == "gpu_not_ready":
        return "remote" if seen.flow.direction == "send" and is_v3_full(seen, other) else "local"
    if seen.flow.direction == "recv":
        return "remote"
    if state == "not_transmitted":
        return "local" if other is not None and has_room(other) else "remote"
    return "either"


def has_room(receiver: TeamFlow) -> bool:
    """Tell whether a receiver has offered the network a buffer that nothing has come into."""
    return receiver.flow.posted > receiver.flow.gpu_ready


def keeps_data(sender: TeamFlow, receiver: TeamFlow | None) -> bool:
    """Tell whether the network between two ranks keeps what no receiver has asked for: it is known to be of sockets, or has taken
    more than was asked for."""
    if sender.network == "sockets" or (receiver is not None and receiver.network == "sockets"):
        return True
    return receiver is not None and sender.flow.transmitted > receiver.flow.posted


def is_under_way(sender: TeamFlow, receiver: TeamFlow) -> bool:
    """Tell whether data that a sender's network calls delivered has not come to a receiver that has room for it."""
    return has_room(receiver) and sender.flow.done > receiver.flow.gpu_ready


def is_v3_full(sender: TeamFlow, receiver: TeamFlow | None) -> bool:
    """Tell whether a sender of interface v3 may wait for buffers of its peer: v3 has no word for that, it looks as if it waited
    for its GPU."""
    return (
        sender.api == 3 and sender.flow.posted > sender.flow.gpu_ready and (receiver is None or not has_room(receiver))
    )
