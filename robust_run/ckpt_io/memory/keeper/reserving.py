"""Buffers that workers ask for: reserved by another thread, as many as there is room for, and the worker is told. In the
keeper's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run.ckpt_io.memory import buffers, generations
from robust_run.ckpt_io.memory.agent_protocol import KeeperNote
from robust_run.ckpt_io.memory.budget import rounded
from robust_run.ckpt_io.memory.flushing.running import Runs
from robust_run.ckpt_io.memory.generations import Holdings
from robust_run.ckpt_io.memory.keeper.peers import Peer
from robust_run.ckpt_io.memory.pool import Pool
from robust_run.ckpt_io.memory.protocol import Refused, Reserved
from robust_run.ckpt_io.memory.types import BUFFERS

_LEAST_BUFFERS = 2
"""While a rank moves to larger buffers and holds parts in smaller ones: one that is whole, one that is written."""
_MOST_BYTES = 1 << 46


class Reservations:
    """One node's."""

    def __init__(
        self,
        pool: Pool,
        run: Runs,
        tell: Callable[[KeeperNote], None],
        holdings: Callable[[], Holdings],
        take_in: Callable[[list[int], int, int], None],
        needs: Callable[[int, bool], None],
        make_room: Callable[[], bool],
    ) -> None:
        """`take_in`: descriptors, of a rank, of so many bytes. `needs`: a rank has said what it needs, and whether that is new;
        what is of no use then can be freed. `make_room`: whether something could be given up.
        """
        self._pool, self._run, self._tell, self._holdings = pool, run, tell, holdings
        self._take_in, self._needs, self._make_room = take_in, needs, make_room
        self.needed_bytes: dict[int, int] = {}
        """What ranks have asked for in this attempt, for one buffer."""
        self._under_way: set[int] = set()
        self._waiting: list[tuple[Peer, int]] = []
        """Ask for buffers of a rank for which some are being reserved: it may have died meanwhile and come back."""
        self._told_refusal = False

    def begin_attempt(self) -> None:
        """Ranks ask anew, and a refusal is said anew."""
        self.needed_bytes.clear()
        self._told_refusal = False

    def forget(self, peer: Peer) -> None:
        """A worker has hung up."""
        self._waiting = [each for each in self._waiting if each[0] is not peer]

    def ask(self, peer: Peer, rank: int, size_bytes: int) -> None:
        """Answer with buffers for parts of so many bytes, now or once they are reserved; or say why there are none."""
        if not 0 < size_bytes <= _MOST_BYTES:
            self._refuse(peer, f"a part of {size_bytes} bytes cannot be; at most {_MOST_BYTES} are kept")
            return
        is_new = self.needed_bytes.get(rank) != size_bytes
        self.needed_bytes[rank] = size_bytes
        self._needs(rank, is_new)
        large = len(generations.large(self._holdings(), rank, size_bytes))
        missing = BUFFERS - large
        if missing <= 0:
            self._answer(peer, rank, size_bytes)
        elif rank in self._under_way:
            self._waiting.append((peer, size_bytes))
        else:
            has_some = any(each.rank == rank for each in self._holdings().buffers)
            self._start(peer, rank, size_bytes, missing, max(0, _LEAST_BUFFERS - large) if has_some else missing)

    def _start(self, peer: Peer, rank: int, size_bytes: int, wanted: int, least: int, *, is_last: bool = False) -> None:
        room_bytes = rounded(size_bytes)

        def job() -> list[int]:
            return buffers.reserve(self._pool.ledger, rank, room_bytes, wanted, least)

        def then(made: list[int] | Exception) -> None:
            self._under_way.discard(rank)
            if not is_last and isinstance(made, buffers.NoRoom) and self._make_room():
                self._start(peer, rank, size_bytes, wanted, least, is_last=True)
                return
            if isinstance(made, Exception):
                self._refuse(peer, str(made))
            else:
                self._take_in(made, rank, room_bytes)
                self._answer(peer, rank, size_bytes)
            waiting, self._waiting = self._waiting, []
            for other, asked_bytes in waiting:
                if other.is_open and other.rank is not None:
                    self.ask(other, other.rank, asked_bytes)

        self._under_way.add(rank)
        self._run(job, then, is_long=True)

    def _answer(self, peer: Peer, rank: int, size_bytes: int) -> None:
        held = self._holdings()
        ids = generations.large(held, rank, size_bytes)
        peer.known = frozenset(ids)
        least_bytes = min((each.size_bytes for each in held.buffers if each.id in peer.known), default=0)
        if peer.is_open:
            peer.send(Reserved(buffers=ids, size_bytes=least_bytes), [self._pool.descriptor(each) for each in ids])

    def _refuse(self, peer: Peer, reason: str) -> None:
        if peer.is_open:
            peer.send(Refused(reason=reason))
        if not self._told_refusal:
            self._told_refusal = True
            self._tell(KeeperNote(text=reason))
