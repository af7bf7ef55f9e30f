"""Which node asks NCCL's RAS, and where the answer goes: it is the same for the whole job, so few ask."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from robust_run.tracer.ras.client import ask
from robust_run.tracer.ras.types import RasReport
from robust_run.tracer.types import RankSight

#: Nodes with one of these ranks ask. Two, for with one rank a node it may be the very rank that does not answer.
ASKING_RANKS = frozenset({0, 1})
#: Who looks once only wants stacks; a suspicion looks several times.
SUSPICION_SAMPLES = 2


def is_ours_to_ask(address: str, ranks: Collection[int], samples: int) -> bool:
    """Whether a node with these ranks asks when it is told to look so many times. `address` empty: RAS has none of ours."""
    return bool(address) and samples >= SUSPICION_SAMPLES and not ASKING_RANKS.isdisjoint(ranks)


async def heard(address: str, ranks: Collection[int], samples: int) -> RasReport | None:
    """Return what RAS says, None where this node does not ask or nobody answers. Takes `client.LIMIT_S` at most; never raises."""
    return await ask(address) if is_ours_to_ask(address, ranks, samples) else None


def with_report(sights: tuple[RankSight, ...], report: RasReport | None) -> tuple[RankSight, ...]:
    """Return the sights of a node with what RAS said, on the first of them."""
    if report is None or not sights:
        return sights
    return (msgspec.structs.replace(sights[0], ras=report), *sights[1:])
