"""How a network of sockets moves what GPUs give it: it takes and keeps data that no receiver has asked for.

As seen on a real GPU (NCCL 2.28.9, `NCCL_NET=Socket`): a send is taken at once and is done as soon as the kernels at both ends
have room for it, whether the other rank has come or not. So "done" says nothing of the receiver, and a receiver that stands still
shows at its sender only when those buffers are full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.nccl.simulate import Model, Wire


def give(model: Model, wire: Wire, before: Sequence[Wire]) -> bool:
    """Have the proxy thread of a sender hand over what its GPU has filled. `before`: earlier calls over the same connection."""
    moved = False
    if wire.sent < wire.filled:
        wire.sent += 1
        moved = True
    kept = sum(of.delivered - of.arrived for of in (*before, wire))
    passes = kept == 0 and wire.offered > wire.arrived and not is_cut(model, wire)
    if wire.delivered < wire.sent and (kept < model.world.kept or passes) and not model.is_dead(wire.target):
        wire.delivered += 1
        moved = True
    return moved


def carry(model: Model, wire: Wire) -> bool:
    """Have the network bring one chunk to the machine of its receiver, unless it is cut. Processes have no part in it."""
    if wire.carried >= wire.delivered or is_cut(model, wire):
        return False
    wire.carried += 1
    return True


def take(wire: Wire) -> bool:
    """Have the proxy thread of a receiver take a chunk into a buffer that it has offered."""
    if wire.arrived >= min(wire.carried, wire.offered):
        return False
    wire.arrived += 1
    return True


def is_cut(model: Model, wire: Wire) -> bool:
    """Whether nothing gets from one machine to the other by now."""
    return model.cut(wire, "network") or model.cut(wire, "node")
