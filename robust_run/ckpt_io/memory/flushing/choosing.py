"""Which buffers are written to storage, and how they are offered to the process that writes. Pure."""

from __future__ import annotations

from robust_run.ckpt_io.memory.flushing.words import OfferedPart
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer, Holdings


def has(each: HeldBuffer, generation: Generation) -> bool:
    """Whether a buffer holds a part of a generation."""
    return each.part is not None and each.part.generation == generation


def all_whole(holdings: Holdings) -> list[HeldBuffer]:
    """Return the buffers of all generations of which every rank of this node has a whole part."""
    found: dict[Generation, dict[int, HeldBuffer]] = {}
    for each in holdings.buffers:
        if each.part is not None and each.part.state == "whole" and each.part.world_size == holdings.world_size:
            found.setdefault(each.part.generation, {})[each.rank] = each
    wanted = set(holdings.ranks)
    return [by_rank[rank] for by_rank in found.values() if wanted and wanted <= set(by_rank) for rank in holdings.ranks]


def offered(each: HeldBuffer, descriptor: int) -> OfferedPart:
    """Return what is said of a whole part, which is read through a descriptor."""
    part = each.part
    assert part is not None, "only what is whole is offered"
    return OfferedPart(
        attempt=part.attempt,
        step=part.step,
        rank=each.rank,
        descriptor=descriptor,
        used_bytes=part.used_bytes,
        digest=part.digest.hex(),
        created_s=part.created_s,
    )
