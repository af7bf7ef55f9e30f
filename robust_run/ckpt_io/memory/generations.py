"""Which buffer a part goes to, which generations are held, and what a new attempt drops. Pure.

**Invariant:** once the ranks of this node have a generation in common, no choice made here takes their newest one away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from robust_run.ckpt_io.memory.types import BUFFERS, MOST_STEP, MemoryGeneration

Generation = tuple[int, int]
"""Attempt and step: a later one is newer."""
PartState = Literal["making", "copied", "whole"]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a buffer."""

    attempt: int
    step: int
    world_size: int
    maker: int
    """The connection over which it came."""
    state: PartState = "making"
    used_bytes: int = 0
    digest: bytes = b""
    created_s: float = 0.0
    before: int | None = None
    """The step whose save its rank had asked for before, in the same attempt; None: it is the first, or came from elsewhere."""

    @property
    def generation(self) -> Generation:
        """Of what it is a part."""
        return self.attempt, self.step


class HeldBuffer(msgspec.Struct, frozen=True, kw_only=True):
    """Room for a part of one rank."""

    id: int
    rank: int
    size_bytes: int
    part: Part | None = None


class Holdings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a keeper holds."""

    attempt: int = -1
    """-1: none has begun."""
    world_size: int = 0
    ranks: tuple[int, ...] = ()
    """Of this node in this attempt."""
    start: Generation | None = None
    """What this attempt started from in memory, perhaps a generation of another world; None: it did not."""
    begun: Mapping[int, int] = {}
    """The last step that each rank began in this attempt, or would have."""
    buffers: tuple[HeldBuffer, ...] = ()


def begin_attempt(
    holdings: Holdings,
    attempt: int,
    ranks: Collection[int],
    world_size: int,
    resumed_step: int | None,
    resumed_attempt: int | None = None,
) -> Holdings:
    """Drop what is in the making, and what belongs to a past that did not happen: all beyond where this attempt starts."""
    latest = -1 if resumed_step is None else resumed_step
    start = None if resumed_attempt is None or resumed_step is None else (resumed_attempt, resumed_step)

    def stays(part: Part | None) -> bool:
        return part is not None and part.state != "making" and part.step <= latest

    kept = tuple(each if stays(each.part) else _emptied(each) for each in holdings.buffers)
    return Holdings(attempt=attempt, world_size=world_size, ranks=tuple(sorted(set(ranks))), start=start, buffers=kept)


def make(holdings: Holdings, rank: int, step: int, *, maker: int, free: Collection[int]) -> tuple[Holdings, int | str]:
    """Give a buffer to a part of this step, or say why there is none.

    Args:
        holdings: What there is.
        rank: One of this node's.
        step: Of the part.
        maker: The connection that asks.
        free: Buffers that it may write to: those it knows, without those that are being read or hashed.
    """
    chosen = _choose(holdings, rank, step, maker, free)
    before = holdings.begun.get(rank)
    holdings = passes(holdings, rank, step)
    if isinstance(chosen, str):
        return holdings, chosen
    part = Part(attempt=holdings.attempt, step=step, world_size=holdings.world_size, maker=maker, before=before)
    holdings = forget(holdings, maker)  # what it began before and did not finish is given up
    return _with_part(holdings, chosen, part), chosen


def passes(holdings: Holdings, rank: int, step: int) -> Holdings:
    """Note that a rank is at a step, whether that is kept or not."""
    return msgspec.structs.replace(holdings, begun={**holdings.begun, rank: step})


def _choose(holdings: Holdings, rank: int, step: int, maker: int, free: Collection[int]) -> int | str:
    if not 0 <= step <= MOST_STEP:
        return f"step {step} cannot be kept: steps are whole numbers from 0 to 2**62"
    if find(holdings, rank, (holdings.attempt, step)) is not None:
        return f"step {step} of this attempt is held already"
    mine = [each for each in holdings.buffers if each.rank == rank and each.id in free]
    for each in mine:
        if each.part is None or _is_left(each.part, maker):
            return each.id
    newest = common(holdings)
    spare = [
        (not is_dead(holdings, each.part), each.part.generation, each.id)
        for each in mine
        if each.part is not None and is_spare(holdings, each.part, newest)
    ]
    if spare:
        return min(spare)[2]
    return f"step {step} is not kept: all buffers are in use until other ranks of this node have saved what rank {rank} has"


def _is_left(part: Part, maker: int) -> bool:
    return part.state == "making" and part.maker == maker


def is_spare(holdings: Holdings, part: Part, newest: Generation | None) -> bool:
    """Whether nothing is lost with a part: the ranks have a newer one in common, or will never have it."""
    if not _counts(part):
        return False
    if part.generation == holdings.start:  # of another world, perhaps: until there is a newer one, it is all there is
        return newest is not None and part.generation < newest
    return (newest is not None and part.generation < newest) or is_dead(holdings, part)


def common(holdings: Holdings) -> Generation | None:
    """Return the newest generation of which every rank of this node has a part, hashed or not."""
    have: dict[Generation, set[int]] = {}
    for each in holdings.buffers:
        if each.part is not None and _counts(each.part) and each.part.world_size == holdings.world_size:
            have.setdefault(each.part.generation, set()).add(each.rank)
    wanted = set(holdings.ranks)
    return max((generation for generation, ranks in have.items() if wanted and wanted <= ranks), default=None)


def whole(holdings: Holdings) -> tuple[HeldBuffer, ...]:
    """Return the parts of the newest generation of which every rank of this node has one that is hashed, by rank."""
    have: dict[Generation, dict[int, HeldBuffer]] = {}
    for each in holdings.buffers:
        if each.part is not None and each.part.state == "whole" and each.part.world_size == holdings.world_size:
            have.setdefault(each.part.generation, {})[each.rank] = each
    found = [generation for generation, of in have.items() if holdings.ranks and of.keys() >= set(holdings.ranks)]
    return tuple(have[max(found)][rank] for rank in holdings.ranks) if found else ()


def is_dead(holdings: Holdings, part: Part) -> bool:
    """Whether the ranks of this node will never have this generation in common: one has none of it, and is past it."""
    if part.world_size != holdings.world_size:
        return True
    have = {each.rank for each in holdings.buffers if each.part is not None and each.part.generation == part.generation}
    return any(
        part.attempt != holdings.attempt or holdings.begun.get(rank, -1) >= part.step
        for rank in holdings.ranks
        if rank not in have
    )


def copied(holdings: Holdings, buffer: int, maker: int, step: int, used_bytes: int, now_s: float) -> Holdings | None:
    """Note that a part was copied; None: it is not one that this connection makes."""
    found = _with_id(holdings, buffer)
    if found is None or found.part is None or found.part.state != "making":
        return None
    if (found.part.maker, found.part.step) != (maker, step) or not 0 < used_bytes <= found.size_bytes:
        return None
    return _with_part(
        holdings,
        buffer,
        msgspec.structs.replace(found.part, state="copied", used_bytes=used_bytes, created_s=now_s),
    )


def hashed(holdings: Holdings, buffer: int, part: Part, digest: bytes | None) -> Holdings:
    """Note a part's digest; None: it could not be read, and is dropped. Nothing happens where the buffer holds another by now."""
    found = _with_id(holdings, buffer)
    if found is None or found.part != part:
        return holdings
    whole = None if digest is None else msgspec.structs.replace(part, state="whole", digest=digest)
    return _with_part(holdings, buffer, whole)


def forget(holdings: Holdings, maker: int) -> Holdings:
    """Drop what a connection that ended was making."""
    kept = [
        _emptied(each) if each.part is not None and _is_left(each.part, maker) else each for each in holdings.buffers
    ]
    return msgspec.structs.replace(holdings, buffers=tuple(kept))


def find(holdings: Holdings, rank: int, generation: Generation) -> HeldBuffer | None:
    """Return the buffer that holds a rank's part, hashed or not."""
    for each in holdings.buffers:
        if each.rank == rank and each.part is not None and _counts(each.part) and each.part.generation == generation:
            return each
    return None


def held(holdings: Holdings, guests: Iterable[HeldBuffer] = ()) -> tuple[MemoryGeneration, ...]:
    """Return what is held whole, of any world size, and copies of other nodes' parts: the newest first."""
    guests = tuple(guests)
    own, copies = _whole_parts(holdings.buffers), _whole_parts(guests)
    sizes: dict[tuple[Generation, int], list[int]] = {}
    for each in (*holdings.buffers, *guests):
        if each.part is not None and each.part.state == "whole":
            sizes.setdefault((each.part.generation, each.part.world_size), []).append(each.size_bytes)
    return tuple(
        MemoryGeneration(
            attempt=generation[0],
            step=generation[1],
            world_size=world_size,
            ranks=tuple(sorted(mine)),
            created_s=max((*mine.values(), *others.values())),
            copies=tuple(sorted(others.keys() - mine.keys())),
            largest_bytes=max((*sizes.get((generation, world_size), ()), 0)),
        )
        for generation, world_size in sorted(own.keys() | copies.keys(), reverse=True)
        for mine, others in [(own.get((generation, world_size), {}), copies.get((generation, world_size), {}))]
    )


def _whole_parts(buffers: Iterable[HeldBuffer]) -> dict[tuple[Generation, int], dict[int, float]]:
    """Return by generation and world size which ranks have a whole part, and when it was copied."""
    found: dict[tuple[Generation, int], dict[int, float]] = {}
    for each in buffers:
        if each.part is not None and each.part.state == "whole":
            found.setdefault((each.part.generation, each.part.world_size), {})[each.rank] = each.part.created_s
    return found


def add(holdings: Holdings, rank: int, size_bytes: int, ids: Collection[int]) -> Holdings:
    """Take new, empty buffers in."""
    new = tuple(HeldBuffer(id=each, rank=rank, size_bytes=size_bytes) for each in ids)
    return msgspec.structs.replace(holdings, buffers=holdings.buffers + new)


def take_over(holdings: Holdings, buffer: HeldBuffer) -> Holdings:
    """Take in a buffer with a part that was made elsewhere."""
    return msgspec.structs.replace(holdings, buffers=(*holdings.buffers, buffer))


def without(holdings: Holdings, ids: Collection[int]) -> Holdings:
    """Let buffers go."""
    return msgspec.structs.replace(holdings, buffers=tuple(each for each in holdings.buffers if each.id not in ids))


def large(holdings: Holdings, rank: int, size_bytes: int, most: int = BUFFERS) -> tuple[int, ...]:
    """Return the buffers that a rank writes parts of this size to."""
    mine = [each for each in holdings.buffers if each.rank == rank and each.size_bytes >= size_bytes]
    return tuple(each.id for each in mine)[:most]


def _counts(part: Part | None) -> bool:
    return part is not None and part.state != "making"


def _emptied(each: HeldBuffer) -> HeldBuffer:
    return msgspec.structs.replace(each, part=None)


def _with_id(holdings: Holdings, buffer: int) -> HeldBuffer | None:
    return next((each for each in holdings.buffers if each.id == buffer), None)


def _with_part(holdings: Holdings, buffer: int, part: Part | None) -> Holdings:
    kept = [msgspec.structs.replace(each, part=part) if each.id == buffer else each for each in holdings.buffers]
    return msgspec.structs.replace(holdings, buffers=tuple(kept))
