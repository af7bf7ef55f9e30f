"""What a rank did inside NCCL between two looks, in a few numbers: small enough to travel in every window. Plain data.

The counters of a flow (see `types.Flow`) say how far it has come; these say where its steps spent their time meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec

from robust_run.tracer.nccl.types import NAME_CHARACTERS, Confidence, Direction

_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
#: Flows and communicators of one rank that travel, the busiest.
MOST_FLOWS, MOST_COMMS = 64, 16


class FlowWork(msgspec.Struct, frozen=True, array_like=True):
    """What went between a rank and a peer in one direction, all channels together.

    Step-seconds: three steps that wait for two seconds are six.
    """

    comm: int
    """Hash of the communicator."""
    member: int
    peer: int
    """Both of the communicator."""
    direction: Direction
    steps: _Count
    """That were done."""
    bytes: _Count
    first_s: _Seconds
    """Step-seconds between the first two rungs: a sender's buffers that the GPU has not filled, a receiver's that nothing came
    into."""
    second_s: _Seconds
    """Between the next two: filled and not taken by the network; come and not flushed."""
    third_s: _Seconds
    """Between the last two: under way; there and not consumed by the GPU."""
    working_s: _Seconds
    """Seconds in which there was any of the third kind, of all channels together."""
    channels: _Count = 1


class CommWork(msgspec.Struct, frozen=True, array_like=True):
    """What a rank completed in one communicator."""

    hash: int
    name: Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]
    member: int
    ranks: int | None
    """Members in all; None: unknown."""
    ops: _Count


class RankWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank did in a window."""

    rank: int
    """Of the world."""
    node: str
    length_s: _Seconds
    flows: Annotated[tuple[FlowWork, ...], msgspec.Meta(max_length=MOST_FLOWS)]
    comms: Annotated[tuple[CommWork, ...], msgspec.Meta(max_length=MOST_COMMS)]
    proxy_busy_s: _Seconds = 0.0
    """For how long its proxy threads had work; 0: not known."""
    proxy_ran_s: _Seconds = 0.0
    """For how long of that they ran on a CPU."""


SlowComponent = Literal["gpu", "proxy", "nic", "link", "node"]
"""gpu: comes late to operations, or is slow in them. proxy: its thread gets no CPU, or sleeps. nic: all that one rank sends and
receives is slow (its NIC, its PCIe slot). link: the way from one rank to another. node: several ranks of one."""


class SlowFault(msgspec.Struct, frozen=True, kw_only=True):
    """What makes operations slow."""

    component: SlowComponent
    ranks: tuple[int, ...]
    """Of the world; of a link sender and receiver."""
    nodes: tuple[str, ...]
    comm: str
    """Name of the communicator in which it costs most."""
    share: float
    """Part of the time between two operations that it costs."""
    confidence: Confidence
    sentence: str
    """For people. One line."""
    evidence: tuple[str, ...]


def joined_flows(flows: Iterable[FlowWork]) -> tuple[FlowWork, ...]:
    """Return flows of several windows of one rank as those of one."""
    found: dict[tuple[int, int, int, str], FlowWork] = {}
    for flow in flows:
        key = flow.comm, flow.member, flow.peer, flow.direction
        before = found.get(key)
        found[key] = flow if before is None else _sum(before, flow)
    return tuple(found.values())


def joined_channels(flows: Iterable[FlowWork]) -> tuple[FlowWork, ...]:
    """Return flows of several channels as one of each peer and direction."""
    found: dict[tuple[int, int, int, str], FlowWork] = {}
    for flow in flows:
        key = flow.comm, flow.member, flow.peer, flow.direction
        before = found.get(key)
        channels = flow.channels + (0 if before is None else before.channels)
        found[key] = flow if before is None else msgspec.structs.replace(_sum(before, flow), channels=channels)
    return tuple(found.values())


def _sum(one: FlowWork, other: FlowWork) -> FlowWork:
    return msgspec.structs.replace(
        other,
        steps=one.steps + other.steps,
        bytes=one.bytes + other.bytes,
        first_s=one.first_s + other.first_s,
        second_s=one.second_s + other.second_s,
        third_s=one.third_s + other.third_s,
        working_s=one.working_s + other.working_s,
    )
