"""What may wait for what inside NCCL, and the causes at which waiting ends. Plain data."""

from __future__ import annotations

from typing import NamedTuple

from robust_run.tracer.nccl.teams import FlowKey
from robust_run.tracer.nccl.types import FaultKind, FlowState


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


Vertex = FlowVertex | GpuVertex | HostVertex
Reason = Vertex | Cause
