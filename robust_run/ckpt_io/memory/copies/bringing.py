"""Parts that ranks of this node start from and that are elsewhere: brought before they ask. In the keeper's thread.

A part that is here as a copy is the rank's own from then on; what other nodes have is fetched from all of them at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from robust_run.ckpt_io.memory import buffers, generations
from robust_run.ckpt_io.memory.agent_protocol import Bring, KeeperNote, Source
from robust_run.ckpt_io.memory.copies.copying import Brought, CopyFailed, Errand, fetch
from robust_run.ckpt_io.memory.copies.greeting import Credentials
from robust_run.ckpt_io.memory.copies.guest_desk import GuestDesk
from robust_run.ckpt_io.memory.copies.words import Pull
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer, Holdings, Part
from robust_run.ckpt_io.memory.pool import Pool
from robust_run.ckpt_io.memory.protocol import Coming

BROUGHT_BY = -1
"""The maker of parts that were brought: no connection of a worker."""


class RunsFetch(Protocol):
    """Runs a job in a thread that fetches, then `then` in the keeper's."""

    def __call__(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Return at once."""
        ...


class Bringing:
    """One node's."""

    def __init__(
        self, pool: Pool, desk: GuestDesk, ours: Credentials, run: RunsFetch, tell: Callable[[KeeperNote], None]
    ) -> None:
        self._pool, self._desk, self._ours, self._run, self._tell = pool, desk, ours, run, tell
        self._attempt, self._has_begun = -1, False
        self._errands: dict[tuple[int, Generation], Errand] = {}
        """On their way."""
        self._failures: dict[tuple[int, Generation], str] = {}
        self.pinned: set[int] = set()
        """Buffers of parts that are here before the attempt that needs them: nobody else knows what they are for."""

    def bring(self, message: Bring, holdings: Holdings, came: Callable[[HeldBuffer | None], None]) -> Holdings:
        """Have parts brought; `came` gets each that is fetched, in a buffer that is in no holdings yet, or None: it failed."""
        self.drop()
        self._attempt, self._has_begun = message.attempt, False
        generation = (message.from_attempt, message.step)
        for source in message.sources:
            found = generations.find(holdings, source.rank, generation)
            if found is None and (copy := self._desk.adopt(source.rank, generation)) is not None:
                holdings, found = generations.take_over(holdings, copy), copy
            if found is not None:
                self.pinned.add(found.id)
            elif (source.rank, generation) not in self._errands:
                self._fetch(source, generation, came)
        return holdings

    def _fetch(self, source: Source, generation: Generation, came: Callable[[HeldBuffer | None], None]) -> None:
        name = (source.rank, generation)
        if not source.host or not self._ours.key:
            self._failures[name] = f"step {generation[1]} of rank {source.rank} is not held here any more"
            return
        errand = Errand(source, Pull(rank=source.rank, attempt=generation[0], step=generation[1]))
        self._errands[name] = errand

        def then(result: Brought | Exception) -> None:
            if self._errands.get(name) is not errand:  # nobody waits for it any more
                if isinstance(result, Brought):
                    self._pool.free([_buffer(self._pool, source.rank, result)])
                return
            del self._errands[name]
            if isinstance(result, Brought):
                buffer = _buffer(self._pool, source.rank, result)
                if not self._has_begun:
                    self.pinned.add(buffer.id)
                came(buffer)
                return
            why = str(result) if isinstance(result, CopyFailed) else f"{type(result).__name__}: {result}"
            self._failures[name] = why
            self._tell(KeeperNote(text=f"step {generation[1]} of rank {source.rank} could not be brought here: {why}"))
            came(None)

        ledger: buffers.Ledger = self._pool.ledger
        self._run(lambda: fetch(errand, self._ours, ledger), then)

    def begin_attempt(self, attempt: int) -> None:
        """Let go of what was brought for attempts before; what was for this one has its ranks now."""
        self.pinned.clear()
        self._has_begun = True
        if attempt != self._attempt:
            self.drop()

    def drop(self) -> None:
        """Wait for nothing any more."""
        for errand in self._errands.values():
            errand.off.set()
        self._errands.clear()
        self._failures.clear()
        self.pinned.clear()

    def coming(self, rank: int, generation: Generation) -> Coming | None:
        """Say how far a part is; None: it is not on its way."""
        errand = self._errands.get((rank, generation))
        return None if errand is None else Coming(done_bytes=errand.done_bytes, of_bytes=errand.of_bytes)

    def failure(self, rank: int, generation: Generation) -> str:
        """Return why a part could not be brought; empty: it was not asked for, or nothing is wrong."""
        return self._failures.get((rank, generation), "")


def _buffer(pool: Pool, rank: int, brought: Brought) -> HeldBuffer:
    said = brought.parcel
    (id_,) = pool.take_in([brought.descriptor])
    part = Part(
        attempt=said.attempt,
        step=said.step,
        world_size=said.world_size,
        maker=BROUGHT_BY,
        state="whole",
        used_bytes=said.used_bytes,
        digest=said.digest,
        created_s=said.created_s,
    )
    return HeldBuffer(id=id_, rank=rank, size_bytes=brought.size_bytes, part=part)
