"""Says of ranks that others wait for what could wake them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import msgspec

from robust_run.tracer.stacks.normal import origin, short_path
from robust_run.tracer.types import RankSight
from robust_run.tracer.verdict.addresses import Peers
from robust_run.tracer.verdict.picture import Picture
from robust_run.tracer.wake.chain import chain_of
from robust_run.tracer.wake.types import ThreadWait, WakeChain
from robust_run.tracer.words import one_line

#: How the wait for a lock begins that names no owner.
_ANY_THREAD = ("waits for one of its ", "waits for the other thread")
#: Of threads that run Python, so many are named.
_SIDES = 2
ARROW = " ← "
#: Of many ranks that are waited for, so many chains are drawn.
CHAINS = 4
#: Of ranks that wait for each other's connections, so many are followed.
_HOPS = 4
#: Who may wake the last link is named in so many characters.
_END_CHARACTERS = 120


def wake_clause(sight: RankSight | None) -> str:
    """Return what a rank waits for, as a clause without the rank; "" if that is not known, or it runs."""
    chain = _chain(sight)
    first = chain.links[0].wait if chain is not None else None
    if chain is None or first is None or any(waker.kind == "nothing" for waker in first.wakers):
        return ""
    is_known = bool(first.call) or any(waker.words or waker.kind != "unknown" for waker in first.wakers)
    return f"{chain.sentence}{_sides(sight, first)}" if is_known else ""


def _sides(sight: RankSight | None, wait: ThreadWait) -> str:
    """Say which of the other threads run Python, where any of them may release the lock that a rank waits for."""
    process = next((one for one in sight.processes if one.is_rank), None) if sight is not None else None
    is_any = any(waker.kind == "thread" and not waker.thread for waker in wait.wakers)
    if process is None or not process.stacks or not is_any or not wait.doing.startswith(_ANY_THREAD):
        return ""
    stacks = [stack for stack in process.stacks[-1] if not stack.is_main and stack.frames]
    if not stacks:
        return ", none of which runs Python"
    frames = [next((frame for frame in stack.frames if origin(frame) == "user"), stack.frames[0]) for stack in stacks]
    spots = [f"{short_path(frame.file).rpartition('/')[2]}:{frame.line} {frame.function}" for frame in frames]
    more = f" and {len(spots) - _SIDES} more" if len(spots) > _SIDES else ""
    return (
        f", of which {'one runs' if len(spots) == 1 else f'{len(spots)} run'} Python: {', '.join(spots[:_SIDES])}{more}"
    )


def chains_of(picture: Picture, ranks: Iterable[int]) -> tuple[tuple[int, WakeChain], ...]:
    """Return the wake chains of the first few of these ranks that have one."""
    wake = Wake(picture)
    chains = ((rank, wake.chain(rank)) for rank in ranks)
    return tuple(islice(((rank, chain) for rank, chain in chains if chain is not None), CHAINS))


def _chain(sight: RankSight | None) -> WakeChain | None:
    return chain_of(sight.wake) if sight is not None and sight.wake is not None else None


class Wake:
    """What a rank waits for in the end, in parts to be joined by arrows: processes, connections, other ranks."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._peers = Peers(picture)

    def chain(self, rank: int) -> WakeChain | None:
        """Return the chain of a rank, its end named as what it is to the job."""
        sight = self._picture.sights.get(rank)
        chain = _chain(sight)
        if sight is None or chain is None:
            return None
        lock = _lock(chain.links[-1].wait)
        if lock:
            return msgspec.structs.replace(chain, ends=(lock,))
        if len(chain.ends) != 1:
            return chain
        return msgspec.structs.replace(chain, ends=tuple(self._end(sight, chain.ends[0], (rank,))[:1]))

    def parts(self, rank: int) -> list[str]:
        """Return the parts after a rank; the first says what it does, "" if that follows from the next one."""
        return self._parts(rank, (rank,))

    def _parts(self, rank: int, before: tuple[int, ...]) -> list[str]:
        sight = self._picture.sights.get(rank)
        if sight is None:
            return [" on a node that does not answer"]
        if sight.exit_code is not None:
            return [f" has ended with exit code {sight.exit_code}"]
        chain = _chain(sight)
        if chain is None:
            return _state(sight)
        parts = ["", *(f"pid {link.pid} {link.command}".rstrip() for link in chain.links[1:])]
        wait = chain.links[-1].wait
        if not wait.call and wait.doing.startswith("is "):  # stopped, or in a debugger: no wait of its own
            parts[-1] += f" {wait.doing}"
        lock = _lock(wait)
        if lock:
            return [*parts[:-1], f"{parts[-1]} waits for {lock}{_unread(sight)}"]
        ends = list(chain.ends)
        known = {link.pid for link in chain.links}
        back = next((waker.pid for waker in wait.wakers if waker.kind == "process" and waker.pid in known), 0)
        if not ends and back:
            ends = [f"rank {rank}" if back == chain.links[0].pid else f"pid {back}"]
        if len(ends) == 1:
            parts += self._end(sight, ends[0], before)
        elif ends:
            parts.append(one_line(" or ".join(ends), _END_CHARACTERS))
        elif not parts[-1].endswith(wait.doing):
            parts[-1] += f" {wait.doing}"
        parts[-1] += _unread(sight)
        return parts

    def _end(self, sight: RankSight, end: str, before: tuple[int, ...]) -> list[str]:
        """Return whom a chain ends at; where that is a rank of the job, what that waits for in turn."""
        there, comma, quiet = end.partition(", ")
        rank = self._peers.rank_of(sight, there)
        if rank is None:
            node = self._peers.node_of(sight, there)
            return [one_line(f"{there} on {node}{comma}{quiet}" if node else end, _END_CHARACTERS)]
        name = f"rank {rank}"
        if self._picture.several_nodes:
            name += f" ({self._picture.sights[rank].node})"
        name += f" at {end}"
        if rank in before or len(before) >= _HOPS:
            return [name]
        here = next((one for one in self._picture.waiting.get(rank, ()) if one.missing), None)
        if here is not None:
            back = next((one for one in before if one in here.missing), None)
            return [name, f"rank {back}"] if back is not None else [f"{name}, in {self._picture.what(here)}"]
        first, *rest = self._parts(rank, (*before, rank))
        return [name + first, *rest]


def _lock(wait: ThreadWait) -> str:
    """Return which threads may release the lock that is waited for, where what they wait for does not tell which; else ""."""
    threads = next((waker.words for waker in wait.wakers if waker.kind == "thread"), "")
    return threads if any(waker.kind == "unknown" for waker in wait.wakers) else ""


def _state(sight: RankSight) -> list[str]:
    """Return what the state of its process tells, where nothing more was read."""
    process = next((one for one in sight.processes if one.is_rank), None)
    if process is not None and process.state == "T":
        return [" is stopped", "a SIGCONT"]
    return [_unread(sight)]


def _unread(sight: RankSight) -> str:
    """Say what could not be read of it: nothing is concluded from what is not there."""
    return f" ({'; '.join(sight.wake.unread[:2])})" if sight.wake is not None and sight.wake.unread else ""
