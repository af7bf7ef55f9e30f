"""All that a keeper has to do with other nodes' keepers: copies it holds, those it sends, and parts that it brings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from robust_run.ckpt_io.memory import generations
from robust_run.ckpt_io.memory.bringing import Bringing, RunsFetch
from robust_run.ckpt_io.memory.copying import Sender
from robust_run.ckpt_io.memory.generations import Holdings
from robust_run.ckpt_io.memory.guest_desk import GuestDesk
from robust_run.ckpt_io.memory.pool import Pool
from robust_run.ckpt_io.memory.protocol import AttemptBegins, KeeperNote
from robust_run.ckpt_io.memory.sending import RunsSend, Sending
from robust_run.ckpt_io.memory.types import MemoryGeneration


class CopyThreads(NamedTuple):
    """What runs what waits for the network, and the key that keepers prove to each other."""

    key: bytes
    send: RunsSend
    fetch: RunsFetch


class KeeperCopies:
    """One keeper's."""

    def __init__(
        self,
        pool: Pool,
        own: Callable[[], Holdings],
        is_settled: Callable[[], bool],
        threads: CopyThreads | None,
        tell: Callable[[KeeperNote], None],
        now_s: Callable[[], float],
    ) -> None:
        key, send, fetch = threads if threads is not None else CopyThreads(b"", _never, _never)
        self._own, self._pool = own, pool
        self.desk = GuestDesk(pool, own, is_settled)
        self.sending = Sending(pool, Sender(key, time.sleep), send, tell, now_s)
        self.bringing = Bringing(pool, self.desk, key, fetch, tell)

    def begin_attempt(self, message: AttemptBegins) -> None:
        """Drop what belongs to a past that did not happen, and send nothing until it is said where to."""
        self.desk.begin_attempt(message.attempt, message.resumed_step)
        self.sending.begin_attempt(message.attempt)
        self.bringing.begin_attempt(message.attempt)

    def look(self) -> None:
        """Note that a part of this node has become whole."""
        self.sending.pace = msgspec.structs.replace(self.sending.pace, sender=self.desk.sender_stride)
        self.sending.look(self._own())
        self.desk.stride = self.sending.pace.own

    def held(self, holdings: Holdings) -> tuple[MemoryGeneration, ...]:
        """Return all that is held whole."""
        return generations.held(holdings, self.desk.guests.buffers)

    @property
    def busy(self) -> set[int]:
        """Buffers that are sent, or that nobody knows yet what for."""
        return self._pool.lent | self.bringing.pinned


def _never(job: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """Run nothing: nobody is named to whom anything could be sent."""
    del job, then
