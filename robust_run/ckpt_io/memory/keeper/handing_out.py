"""Parts that workers start from: handed out once they are hashed, or have come from other nodes. In the keeper's thread."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.ckpt_io.memory import buffers
from robust_run.ckpt_io.memory.copies.bringing import Bringing
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer
from robust_run.ckpt_io.memory.keeper.peers import Peer
from robust_run.ckpt_io.memory.pool import Pool
from robust_run.ckpt_io.memory.protocol import Absent, Fetch, Held, Read

#: How often one who waits for a part of another node is told that it is on its way.
COMING_S = 1.0


class HandingOut:
    """One keeper's."""

    def __init__(
        self,
        find: Callable[[int, Generation], HeldBuffer | None],
        held: Callable[[int, Generation], HeldBuffer | None],
        pool: Pool,
        bringing: Bringing,
        now_s: Callable[[], float],
    ) -> None:
        """`held` returns the buffer with a rank's part; `find` does, too, and makes a copy of another node's this node's own."""
        self._held = held
        self._find, self._pool, self._bringing, self._now_s = find, pool, bringing, now_s
        self._unhashed: list[tuple[Peer, Fetch]] = []
        self._awaited: list[tuple[Peer, Fetch]] = []
        """Of parts that come from other nodes."""
        self._coming_s = 0.0
        """When those who wait for them are told next."""

    def fetch(self, peer: Peer, message: Fetch) -> None:
        """Hand a part out, or say why not; later, where it is not hashed yet or on its way."""
        if peer.rank is None or not peer.is_open:
            return
        rank = peer.rank if message.rank < 0 else message.rank
        found = self._find(rank, (message.attempt, message.step))
        if found is None or found.part is None:
            self._await(peer, rank, message)
            return
        if found.part.state != "whole":
            self._unhashed.append((peer, message))
            return
        try:
            descriptor = buffers.read_only(self._pool.descriptor(found.id))
        except OSError as error:
            peer.send(Absent(reason=f"step {message.step} cannot be handed out: {error.strerror or error}"))
            return
        peer.reading.add(found.id)
        part = found.part
        peer.send(Held(used_bytes=part.used_bytes, digest=part.digest, created_s=part.created_s), [descriptor])
        os.close(descriptor)

    def _await(self, peer: Peer, rank: int, message: Fetch) -> None:
        """Tell one who wants what is not here that it comes, or that it does not."""
        generation = (message.attempt, message.step)
        if (coming := self._bringing.coming(rank, generation)) is not None:
            if not self._awaited:
                self._coming_s = self._now_s() + COMING_S
            self._awaited.append((peer, message))
            peer.send(coming)
        elif why := self._bringing.failure(rank, generation):
            peer.send(Absent(reason=why, was_due=True))
        else:
            peer.send(Absent(reason=f"step {message.step} of attempt {message.attempt} is not held for rank {rank}"))

    def have_read(self, peer: Peer, message: Read) -> None:
        """Note that a part has been read."""
        rank = peer.rank if message.rank < 0 else message.rank
        found = None if rank is None else self._held(rank, (message.attempt, message.step))
        if found is not None:
            peer.reading.discard(found.id)

    def again_hashed(self) -> None:
        """Try again for those whose part was not hashed."""
        waiting, self._unhashed = self._unhashed, []
        for peer, message in waiting:
            self.fetch(peer, message)

    def again_awaited(self) -> None:
        """Try again for those whose part was on its way."""
        waiting, self._awaited = self._awaited, []
        for peer, message in waiting:
            self.fetch(peer, message)

    def answer_due(self) -> float | None:
        """Tell those who wait that it comes, now and then; return how long until the next time, None: nobody waits."""
        if self._awaited and self._coming_s <= self._now_s():
            self.again_awaited()
        return max(0.0, self._coming_s - self._now_s()) if self._awaited else None

    def forget(self, peer: Peer) -> None:
        """Note that one has hung up."""
        self._unhashed = [each for each in self._unhashed if each[0] is not peer]
        self._awaited = [each for each in self._awaited if each[0] is not peer]
