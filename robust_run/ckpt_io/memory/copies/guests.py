"""Copies of other nodes' parts: where one goes, which are whole, and which nobody needs any more. Pure.

**Invariant:** once the ranks of the node that sends have a copied generation in common, no choice made here takes their newest
one away: a copy replaces an older one only when it is whole, and its buffer is the one that holds what is not in common.

They stay when an attempt begins: the attempt that starts from them needs them. What is of a past that did not happen goes.

**When they are given back.** Who keeps copies of a node that is lost for good is never told so, and a node that is lost for a
moment looks the same. What is known here: who sends in the newest attempt, and that this node's own ranks have saved in it
(`keeper_copies.may_forget`). A copy goes when those who send now have one of a later generation in common here; where nobody
sends, when nobody is to: then no attempt starts from it any more. A node that comes back later brings what it holds itself, and
what was saved without it has all its parts elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from robust_run.ckpt_io.memory.copies.words import PartSent, Push
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer, Holdings, Part

GUEST_BUFFERS = 2
"""Of one rank: one that is whole, and one that comes."""


class Guests(msgspec.Struct, frozen=True, kw_only=True):
    """All copies that a keeper holds."""

    buffers: tuple[HeldBuffer, ...] = ()
    during: int = -1
    """The newest attempt in which some came."""
    senders: Mapping[int, int] = {}
    """Ranks of which some came, or may come, in it, and how many bytes the newest part has; 0: none came."""
    floor: Generation = (-1, -1)
    """The newest attempt that began here, and the step that it started from: what older attempts made beyond it did not
    happen."""


def standing_in(own: Holdings, guests: Guests, ranks: Collection[int]) -> Holdings:
    """Return what a node holds, as if ranks of a lost node whose copies it has were its own."""
    if not ranks:
        return own
    copies = tuple(each for each in guests.buffers if each.rank in ranks)
    return msgspec.structs.replace(own, ranks=tuple(sorted({*own.ranks, *ranks})), buffers=(*own.buffers, *copies))


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """Buffers that must be reserved before a copy can come."""

    wanted: int
    least: int
    size_bytes: int


def begin_attempt(guests: Guests, attempt: int, resumed_step: int | None) -> Guests:
    """Drop what belongs to a past that did not happen. What comes just now is judged when it is whole."""
    guests = msgspec.structs.replace(guests, floor=(attempt, -1 if resumed_step is None else resumed_step))
    kept = (
        _with(each, None)
        if each.part is not None and each.part.state == "whole" and is_past(guests, each.part)
        else each
        for each in guests.buffers
    )
    return msgspec.structs.replace(guests, buffers=tuple(kept))


def is_past(guests: Guests, part: Part | PartSent) -> bool:
    """Whether a part was made after the step from which a newer attempt started."""
    attempt, step = guests.floor
    return part.attempt < attempt and part.step > step


def refusal(guests: Guests, own: Holdings, push: Push) -> str:
    """Say why a copy is not to be kept; empty: it is."""
    if is_past(guests, push) or push.during < guests.floor[0]:
        return f"step {push.step} of attempt {push.attempt} is of a past that did not happen"
    if push.rank in own.ranks and push.during == own.attempt:
        return f"rank {push.rank} runs here"
    return "" if push.rank in push.ranks else "a rank that is not one of its own"


def expect(guests: Guests, push: Push) -> Guests:
    """Note who sends."""
    before = guests.senders if push.during <= guests.during else {}
    senders = {
        rank: before.get(rank, 0) for rank in push.ranks
    }  # one node sends at a time: who did before has another peer
    senders[push.rank] = push.used_bytes
    return msgspec.structs.replace(guests, during=max(push.during, guests.during), senders=senders)


def choose(guests: Guests, push: Push, busy: Collection[int]) -> int | Needed | Literal["busy"]:
    """Return the buffer that a copy goes to, what must be reserved first, or that there is none just now."""
    mine = [each for each in guests.buffers if each.rank == push.rank]
    large = [each for each in mine if each.size_bytes >= push.used_bytes]
    kept = _kept(guests, push.rank, push.ranks)
    free = [
        (each.part is not None, each.part.generation if each.part is not None else (-1, -1), each.id)
        for each in large
        if each.id not in busy and (each.part is None or (each.part.state == "whole" and each.part.generation != kept))
    ]
    if free:
        return min(free)[2]
    wanted = GUEST_BUFFERS - len(large)
    if wanted <= 0:
        return "busy"
    return Needed(wanted=wanted, least=1 if mine else wanted, size_bytes=max(push.room_bytes, push.used_bytes))


def place(guests: Guests, buffer: int, push: Push, maker: int) -> Guests:
    """Give a buffer to a copy that comes."""
    part = Part(
        attempt=push.attempt,
        step=push.step,
        world_size=push.world_size,
        maker=maker,
        used_bytes=push.used_bytes,
        digest=push.digest,
        created_s=push.created_s,
    )
    return _change(guests, buffer, part)


def came(guests: Guests, buffer: int, maker: int, *, is_right: bool) -> tuple[Guests, bool]:
    """Note that a copy has come, or will not; whether it counts."""
    part = next((each.part for each in guests.buffers if each.id == buffer), None)
    if part is None or part.maker != maker or part.state != "making":
        return guests, False
    counts = is_right and not is_past(guests, part)
    whole = msgspec.structs.replace(part, state="whole") if counts else None
    return _change(guests, buffer, whole), counts


def find(guests: Guests, rank: int, generation: Generation) -> HeldBuffer | None:
    """Return the buffer with a whole copy."""
    for each in guests.buffers:
        if each.rank == rank and _is_whole(each) and each.part is not None and each.part.generation == generation:
            return each
    return None


def common(guests: Guests, ranks: Iterable[int]) -> Generation | None:
    """Return the newest generation of which each of these ranks has a whole copy."""
    have: dict[Generation, set[int]] = {}
    for each in guests.buffers:
        if each.part is not None and each.part.state == "whole":
            have.setdefault(each.part.generation, set()).add(each.rank)
    wanted = set(ranks)
    return max((generation for generation, of in have.items() if wanted and wanted <= of), default=None)


def are_sent(guests: Guests) -> bool:
    """Whether a node sends copies in the newest attempt that has begun here."""
    return bool(guests.senders) and guests.during >= guests.floor[0]


def have_come(guests: Guests) -> bool:
    """Whether those that are sent in the newest attempt have a generation of it in common here."""
    newest = common(guests, guests.senders)
    return are_sent(guests) and newest is not None and newest[0] == guests.during


def spare(guests: Guests, busy: Collection[int], *, may_forget: bool = False) -> tuple[int, ...]:
    """Return the buffers to free, with which nothing is lost.

    Those of ranks that nobody sends any more, once those that are sent have a later generation, of the newest attempt; and those
    that are too small for what a rank sends now, once it has a newer one. `may_forget`: all, where nobody sends.
    """
    newest = common(guests, guests.senders)
    has_own = newest is not None and newest[0] == guests.during

    def may_go(each: HeldBuffer) -> bool:
        if each.part is not None and each.part.state == "making":
            return False
        if not are_sent(guests) and may_forget:
            return True
        if each.rank not in guests.senders:
            return has_own and newest is not None and (each.part is None or each.part.generation < newest)
        if each.size_bytes >= guests.senders[each.rank]:
            return False
        return each.part is None or (newest is not None and each.part.generation < newest)

    return tuple(each.id for each in guests.buffers if each.id not in busy and may_go(each))


def useless(guests: Guests, ranks: Collection[int], busy: Collection[int]) -> tuple[int, ...]:
    """Return the buffers of a node of which no generation is whole, nor can be: there is too little memory for it."""
    if common(guests, ranks) is not None:
        return ()
    return tuple(each.id for each in idle(guests, busy) if each.rank in ranks)


def idle(guests: Guests, busy: Collection[int]) -> tuple[HeldBuffer, ...]:
    """Return the buffers that nobody writes or reads."""
    return tuple(
        each
        for each in guests.buffers
        if each.id not in busy and not (each.part is not None and each.part.state == "making")
    )


def add(guests: Guests, rank: int, size_bytes: int, ids: Iterable[int]) -> Guests:
    """Take new, empty buffers in."""
    new = tuple(HeldBuffer(id=each, rank=rank, size_bytes=size_bytes) for each in ids)
    return msgspec.structs.replace(guests, buffers=guests.buffers + new)


def without(guests: Guests, ids: Collection[int]) -> Guests:
    """Let buffers go."""
    return msgspec.structs.replace(guests, buffers=tuple(each for each in guests.buffers if each.id not in ids))


def _kept(guests: Guests, rank: int, ranks: Iterable[int]) -> Generation | None:
    """Return the generation whose part of this rank must stay: the newest in common, else the rank's newest."""
    mine = (each.part.generation for each in guests.buffers if each.rank == rank and each.part and _is_whole(each))
    return common(guests, ranks) or max(mine, default=None)


def _is_whole(each: HeldBuffer) -> bool:
    return each.part is not None and each.part.state == "whole"


def _change(guests: Guests, buffer: int, part: Part | None) -> Guests:
    kept = tuple(_with(each, part) if each.id == buffer else each for each in guests.buffers)
    return msgspec.structs.replace(guests, buffers=kept)


def _with(each: HeldBuffer, part: Part | None) -> HeldBuffer:
    return msgspec.structs.replace(each, part=part)
