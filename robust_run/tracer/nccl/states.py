"""Mycroft's table of the states of a flow (arXiv 2509.03018, table 2), for both ends. Pure.

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

from robust_run.tracer.nccl.teams import TeamFlow
from robust_run.tracer.nccl.types import FlowCause, FlowState


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


def is_v3_full(sender: TeamFlow, receiver: TeamFlow | None) -> bool:
    """Tell whether a sender of interface v3 may wait for buffers of its peer: v3 has no word for that, it looks as if it waited
    for its GPU."""
    return (
        sender.api == 3 and sender.flow.posted > sender.flow.gpu_ready and (receiver is None or not has_room(receiver))
    )
