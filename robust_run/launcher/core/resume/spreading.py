"""Parts in memory that more or fewer ranks saved than an attempt has: whether it can start from them. Pure.

Which rank of the attempt needs what of whose part only its program knows. So each node gets all parts of the generation: what it
lacks is brought, if there is room for it.

**How it knows.** Only what keepers that answered hold whole counts, of one attempt, step and world; each rank's part must be on a
node of the attempt, or on one that gives it away. What looks the same and is no reason: fewer ranks of the attempt than parts of
a generation in the making (its parts are not all there); a node that is back and holds what it saved in a world before (another
attempt's, or of a step that a later attempt did not know). **What comes back later:** a node whose part is missing now; what it
held is then of a past that did not happen, or whole again and in the way of nothing. **What nodes see differently:** each says
what it holds and its own room, and the controller alone decides. A starved machine that has not answered holds nothing: storage.

Imported where an attempt has another number of ranks than what nodes hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from robust_run.ckpt_io.memory.budget import gib
from robust_run.ckpt_io.seen import MemoryGeneration
from robust_run.launcher.core.resume.looks import Choosing, MemoryWorld
from robust_run.launcher.core.resume.parts import HeldWhole, grouped, holding, lenders_of

#: Ranks that may have saved it: each of them is a connection, and a mapping in every worker.
MOST_PARTS = 256


class NotSpread(NamedTuple):
    """Why a generation cannot be spread over the ranks of an attempt, as a clause; empty: its parts are not all there."""

    why: str = ""


def spread(choosing: Choosing, world: MemoryWorld, attempt: int, step: int, saved_by: int) -> HeldWhole | NotSpread:
    """Return where the parts of a generation that `saved_by` ranks saved are."""
    held = dict(holding(choosing, saved_by, attempt, step))
    everything = frozenset(range(saved_by))
    own = {node: everything.intersection(held[node].ranks if node in held else ()) for node in world.ranks}
    wanted = everything.difference(frozenset.intersection(*own.values())) if own else everything
    lenders = {rank: node for rank, node in lenders_of(held, world).items() if rank in wanted}
    if not held or lenders.keys() != wanted:
        return NotSpread()
    if saved_by > MOST_PARTS:
        return _not(world, saved_by, f"at most {MOST_PARTS} parts are spread anew")
    for node in world.ranks:
        if too_much := _too_much(choosing, world, held, node, everything.difference(own[node])):
            return _not(world, saved_by, too_much)
    return HeldWhole(
        attempt=attempt,
        step=step,
        created_s=max(each.created_s for each in held.values()),
        elsewhere=tuple(grouped(world, held, dict(sorted(lenders.items())), for_all=True)),
        saved_by=saved_by,
    )


def _not(world: MemoryWorld, saved_by: int, why: str) -> NotSpread:
    return NotSpread(f"it is of {saved_by} ranks, and {world.world_size} run now: {why}")


def _too_much(
    choosing: Choosing,
    world: MemoryWorld,
    held: Mapping[str, MemoryGeneration],
    node: str,
    lacking: frozenset[int],
) -> str:
    """Return why what a node lacks has no room there, with numbers; empty: it has. Copies that it keeps are there already."""
    room_bytes = choosing.asked[node].room_bytes
    copies = held[node].copies if node in held and node in world.reach else ()
    needed_bytes = max(each.largest_bytes for each in held.values()) * len(lacking.difference(copies))
    if room_bytes is None or needed_bytes <= room_bytes:
        return ""
    name = world.names.get(node, "a node")
    return f"{name} needs {gib(needed_bytes)} for parts of other nodes, and {gib(room_bytes)} may be used there"
