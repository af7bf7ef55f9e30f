"""Parts in memory: whether there is one for each rank of an attempt, and which other node has those that are not here. Pure.

Where the attempt has as many ranks as saved a generation, each node needs the parts of its own ranks. Where it has more or fewer,
that is `core.resume.spreading`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from robust_run.ckpt_io.seen import MemoryGeneration
from robust_run.launcher.core.resume.looks import Choosing, LookAsked, MemoryWorld
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import PartsElsewhere

#: How long an attempt waits for what ranks of a node that was evicted have saved: then it starts from elsewhere. That is 70 GiB
#: at 5 Gbit/s, and less than the 10 minutes of training that storage may be behind.
FROM_EVICTED_S = 120.0


class HeldWhole(msgspec.Struct, frozen=True, kw_only=True):
    """A generation of which there is a part for each rank."""

    attempt: int
    step: int
    created_s: float
    """When the last of its parts was copied."""
    elsewhere: tuple[PartsElsewhere, ...] = ()
    """Parts that are not on the node of their rank."""
    saved_by: int = 0
    """So many ranks, if the attempt has more or fewer: then each node needs all parts. 0: as many as the attempt has."""


def whole(choosing: Choosing, world: MemoryWorld, attempt: int, step: int) -> HeldWhole | None:
    """Return where the parts of a generation are; None: there is not one for each rank that could be had."""
    held = dict(holding(choosing, world.world_size, attempt, step))
    elsewhere: list[PartsElsewhere] = []
    lenders: dict[int, str] | None = None
    for node, ranks in world.ranks.items():
        here = held.get(node)
        if here is not None and here.ranks == ranks:
            continue
        lacking = sorted(set(ranks).difference(here.ranks if here is not None else ()))
        lenders = lenders_of(held, world) if lenders is None and lacking else lenders
        near = set(here.copies) if here is not None and node in world.reach else set()
        found = {rank: node if rank in near else (lenders or {}).get(rank, "") for rank in lacking}
        if "" in found.values():
            return None
        elsewhere += grouped(world, held, found)
    created_s = max((each.created_s for each in held.values()), default=0.0)
    return HeldWhole(attempt=attempt, step=step, created_s=created_s, elsewhere=tuple(elsewhere)) if held else None


def of_placement(elsewhere: Iterable[PartsElsewhere], placement: Placement) -> tuple[PartsElsewhere, ...]:
    """Return those that one node has use for."""
    ranks = range(placement.first_rank, placement.first_rank + placement.nproc)
    return tuple(each for each in elsewhere if each.for_all or each.ranks[0] in ranks)


def everybody(choosing: Choosing) -> Iterator[tuple[str, LookAsked]]:
    """Yield who was asked: nodes of the attempt first."""
    yield from choosing.asked.items()
    yield from choosing.holders.items()


def holding(choosing: Choosing, world_size: int, attempt: int, step: int) -> Iterator[tuple[str, MemoryGeneration]]:
    """Yield who has parts of a generation that so many ranks saved."""
    for node, asked in everybody(choosing):
        for each in asked.held:
            if (each.attempt, each.step, each.world_size) == (attempt, step, world_size):
                yield node, each


def lenders_of(held: Mapping[str, MemoryGeneration], world: MemoryWorld) -> dict[int, str]:
    """Return by rank who can give its part away: who made it rather than who has a copy, and last those that may be ill."""
    lenders: dict[int, str] = {}
    there = [(node, each) for node, each in held.items() if node in world.reach]
    well = [(node, each) for node, each in there if node not in world.evicted]
    ill = [(node, each) for node, each in there if node in world.evicted]
    for some in (well, ill):
        for node, each in some:
            lenders.update((rank, node) for rank in each.ranks if rank not in lenders)
        for node, each in some:
            lenders.update((rank, node) for rank in each.copies if rank not in lenders)
    return lenders


def grouped(
    world: MemoryWorld, held: Mapping[str, MemoryGeneration], lenders: Mapping[int, str], *, for_all: bool = False
) -> Iterator[PartsElsewhere]:
    """Yield the parts that one node lacks, or all do: those of one lender and one node before together."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank, node in lenders.items():
        of = "" if rank in held[node].ranks else _ran_on(world, rank)
        groups.setdefault((node, of), []).append(rank)
    for (node, of), ranks in groups.items():
        at = world.reach[node]
        name = world.names.get(node, node)
        parts = PartsElsewhere(
            ranks=tuple(sorted(ranks)), of=of, name=name, host=at.host, port=at.port, for_all=for_all
        )
        yield msgspec.structs.replace(parts, within_s=FROM_EVICTED_S) if node in world.evicted else parts


def _ran_on(world: MemoryWorld, rank: int) -> str:
    """Return the name of the host that the attempt before ran a rank on."""
    for each in world.held_by:
        if each.first_rank <= rank < each.first_rank + each.nproc:
            return each.name
    return f"rank {rank}"
