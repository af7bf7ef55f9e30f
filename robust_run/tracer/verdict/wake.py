"""Says of ranks that others wait for what could wake them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from robust_run.tracer.types import RankSight
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.wake.chain import chain_of
from robust_run.tracer.wake.types import WakeChain

#: Of many ranks that are waited for, so many chains are drawn.
CHAINS = 4


def wake_clause(sight: RankSight | None) -> str:
    """Return what a rank waits for, as a clause without the rank; "" if that is not known, or it runs."""
    chain = _chain(sight)
    if chain is None or any(waker.kind == "nothing" for waker in chain.links[0].wait.wakers):
        return ""
    return chain.sentence


def wake_lines(picture: Picture, ranks: Iterable[int]) -> list[str]:
    """Return a line for each of the first ranks: its wake chain, from the rank to what it waits for in the end."""
    return [
        f"what rank {rank} waits for: {chain.arrows}{_unread(picture.sights[rank])}"
        for rank, chain in chains_of(picture, ranks)
    ]


def _unread(sight: RankSight) -> str:
    """Say what could not be read of it: nothing is concluded from what is not there."""
    return f" ({'; '.join(sight.wake.unread[:2])})" if sight.wake is not None and sight.wake.unread else ""


def chains_of(picture: Picture, ranks: Iterable[int]) -> tuple[tuple[int, WakeChain], ...]:
    """Return the wake chains of the first few of these ranks that have one."""
    chains = ((rank, _chain(picture.sights.get(rank))) for rank in ranks)
    return tuple(islice(((rank, chain) for rank, chain in chains if chain is not None), CHAINS))


def _chain(sight: RankSight | None) -> WakeChain | None:
    return chain_of(sight.wake) if sight is not None and sight.wake is not None else None
