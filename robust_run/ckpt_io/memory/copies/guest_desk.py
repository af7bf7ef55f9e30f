"""What the keeper of another node may have: room for copies of its parts, and parts that are held here. In the keeper's
thread."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from robust_run.ckpt_io.memory import generations
from robust_run.ckpt_io.memory.copies import guests
from robust_run.ckpt_io.memory.copies.guests import Guests, Needed
from robust_run.ckpt_io.memory.copies.words import Kept, Later, NotHere, Parcel, Pull, Push, Stale
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer, Holdings
from robust_run.ckpt_io.memory.pool import Pool


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Where a copy goes."""

    buffer: int
    descriptor: int
    """The buffer's own: it stays open as long as the copy comes."""


class Lent(msgspec.Struct, frozen=True, kw_only=True):
    """A part that is given away."""

    buffer: int
    descriptor: int
    """For the reader alone, who closes it."""
    said: Parcel


class GuestDesk:
    """Holds the copies."""

    def __init__(
        self, pool: Pool, own: Callable[[], Holdings], is_settled: Callable[[], bool], make_room: Callable[[], bool]
    ) -> None:
        """`is_settled`: whether this node's ranks have had their buffers; copies take no memory before.

        `make_room`: frees what nobody is to start from any more, and says whether that was anything.
        """
        self._pool, self._own, self._is_settled, self._make_room = pool, own, is_settled, make_room
        self.may_forget = False
        """Whether copies that nobody sends any more are of no use."""
        self.guests = Guests()
        self.stride = 1
        """That this node needs, for those who send to it."""
        self.sender_stride = 1
        """What they said."""

    def begin_attempt(self, attempt: int, resumed_step: int | None) -> None:
        """Drop what belongs to a past that did not happen."""
        self.guests = guests.begin_attempt(self.guests, attempt, resumed_step)
        self.stride = self.sender_stride = 1
        self.may_forget = False

    # --- a copy comes

    def asks(self, push: Push, maker: int) -> Room | Needed | Kept | Stale | Later:
        """Say where a copy goes, what must be reserved before, or why it does not come."""
        self.sender_stride = push.stride
        if why := guests.refusal(self.guests, self._own(), push):
            return Stale(reason=why)
        self.guests = guests.expect(self.guests, push)
        if guests.find(self.guests, push.rank, push.generation) is not None:
            return Kept(stride=self.stride)
        self.free_spare()
        chosen = guests.choose(self.guests, push, self._pool.lent)
        if isinstance(chosen, Needed):
            if not self._is_settled():
                return Later(reason="its own ranks have no buffers yet")
            return chosen
        if chosen == "busy":
            return Later(reason="its buffers are being written or read")
        self.guests = guests.place(self.guests, chosen, push, maker)
        return Room(buffer=chosen, descriptor=self._pool.descriptor(chosen))

    def reserved(self, push: Push, made: list[int], size_bytes: int) -> None:
        """Take in what was reserved for copies of a rank."""
        self.guests = guests.add(self.guests, push.rank, size_bytes, self._pool.take_in(made))

    def makes_room(self) -> bool:
        """Free what is kept as long as there is room; whether that was anything."""
        return self._make_room()

    def has_no_room(self, push: Push) -> None:
        """Free what is of no use: copies of some ranks of a node, and no room for those of others."""
        self._free(guests.useless(self.guests, push.ranks, self._pool.lent))

    def has_come(self, buffer: int, maker: int, *, is_right: bool) -> bool:
        """Note that a copy is here, or will not come; whether it counts."""
        self.guests, counts = guests.came(self.guests, buffer, maker, is_right=is_right)
        self.free_spare()
        return counts

    # --- a part goes

    def lend(self, pull: Pull) -> Lent | NotHere:
        """Hand a part out, of this node's rank or a copy. It is not written to until it is returned."""
        generation = (pull.attempt, pull.step)
        found = generations.find(self._own(), pull.rank, generation) or guests.find(self.guests, pull.rank, generation)
        if found is None or found.part is None or found.part.state != "whole":
            return NotHere(reason=f"step {pull.step} of attempt {pull.attempt} is not held for rank {pull.rank}")
        try:
            descriptor = self._pool.lend(found.id)
        except OSError as error:
            return NotHere(reason=f"step {pull.step} cannot be read: {error.strerror or error}")
        return Lent(buffer=found.id, descriptor=descriptor, said=_parcel(found))

    def returned(self, buffer: int) -> None:
        """Note that a part that was handed out has been read."""
        self._pool.returned(buffer)

    # --- buffers

    def adopt(self, rank: int, generation: Generation) -> HeldBuffer | None:
        """Give a copy up to the rank itself, which runs here now; None: there is none."""
        found = guests.find(self.guests, rank, generation)
        if found is not None:
            self.guests = guests.without(self.guests, {found.id})
        return found

    def free_spare(self) -> None:
        """Free what nobody needs any more."""
        self._free(guests.spare(self.guests, self._pool.lent, may_forget=self.may_forget))

    def give_way(self) -> bool:
        """Free all that can be: this node's own ranks come first. Whether that was anything."""
        ids = tuple(each.id for each in guests.idle(self.guests, self._pool.lent))
        self._free(ids)
        return bool(ids)

    def _free(self, ids: tuple[int, ...]) -> None:
        self._pool.free([each for each in self.guests.buffers if each.id in ids])
        self.guests = guests.without(self.guests, ids)


def _parcel(found: HeldBuffer) -> Parcel:
    part = found.part
    assert part is not None, "only what is whole is given away"
    return Parcel(
        attempt=part.attempt,
        step=part.step,
        world_size=part.world_size,
        used_bytes=part.used_bytes,
        room_bytes=found.size_bytes,
        digest=part.digest,
        created_s=part.created_s,
    )
