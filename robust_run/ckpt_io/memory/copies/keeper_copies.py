"""All that a keeper has to do with other nodes' keepers: copies it holds, those it sends, and parts that it brings."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from robust_run.ckpt_io.memory import freeing, generations
from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins, KeeperNote
from robust_run.ckpt_io.memory.copies import guests
from robust_run.ckpt_io.memory.copies.bringing import Bringing, RunsFetch
from robust_run.ckpt_io.memory.copies.copying import Sender
from robust_run.ckpt_io.memory.copies.greeting import Credentials
from robust_run.ckpt_io.memory.copies.guest_desk import GuestDesk
from robust_run.ckpt_io.memory.copies.sending import RunsSend, Sending
from robust_run.ckpt_io.memory.generations import Holdings
from robust_run.ckpt_io.memory.pool import Pool
from robust_run.ckpt_io.memory.types import MemoryGeneration

#: How long copies of another node are awaited, once this one's ranks have saved, before what an older attempt left is freed.
FORGET_S = 300.0


class CopyThreads(NamedTuple):
    """What runs what waits for the network, and what keepers show to each other."""

    ours: Credentials
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
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        ours, send, fetch = threads if threads is not None else CopyThreads(Credentials(), _never, _never)
        self._own, self._pool, self._now_s = own, pool, now_s
        self._moved_on_s: float | None = None
        """When this node's ranks had saved in this attempt; None: they have not."""
        self.desk = GuestDesk(pool, own, is_settled, make_room)
        self.sending = Sending(
            pool, Sender(ours, time.sleep), send, tell, now_s, lambda: max(own().begun.values(), default=-1)
        )
        self.bringing = Bringing(pool, self.desk, ours, fetch, tell)
        self.keeps_originals = False
        """Whether what was sent stays until more is: there are buffers enough (`fourth`)."""

    def begin_attempt(self, message: AttemptBegins) -> None:
        """Drop what belongs to a past that did not happen, and send nothing until it is said where to."""
        self.desk.begin_attempt(message.attempt, message.resumed_step)
        self.sending.begin_attempt(message.attempt)
        self.bringing.begin_attempt(message.attempt)
        self.keeps_originals = False
        self._moved_on_s = None

    def may_forget(self) -> bool:
        """Whether parts of ranks that are not this node's, and that nobody sends it, are of no use any more.

        This node's ranks must have saved in this attempt: until then the next one starts where this one did. Where there are
        other nodes, one of them is to have its copies here: when they have come, it has saved, too, and its loss does not need
        an older generation. One that does not send for `FORGET_S` is not waited for: its copies may never come.
        """
        if not freeing.has_moved_on(self._own()):
            return False
        now_s = self._now_s()
        self._moved_on_s = now_s if self._moved_on_s is None else self._moved_on_s
        is_alone = not self.sending.has_peer and not guests.are_sent(self.desk.guests)
        return is_alone or guests.have_come(self.desk.guests) or now_s - self._moved_on_s >= FORGET_S

    def look(self, copies: int = 1) -> None:
        """Note that a part of this node has become whole. `copies`: the stride that all nodes are told to send by."""
        self.desk.may_forget = self.may_forget()
        self.desk.free_spare()
        self.sending.pace = msgspec.structs.replace(self.sending.pace, sender=self.desk.sender_stride, job=copies)
        self.sending.look(self._own())
        self.desk.stride = self.sending.pace.own

    def held(self, holdings: Holdings) -> tuple[MemoryGeneration, ...]:
        """Return all that is held whole."""
        return generations.held(holdings, self.desk.guests.buffers)

    @property
    def busy(self) -> set[int]:
        """Buffers that are sent or were, or that nobody knows yet what for."""
        originals = self.sending.pinned(self._own()) if self.keeps_originals else set()
        return self._pool.lent | self.bringing.pinned | originals


def _never(job: Callable[[], Any], then: Callable[[Any], None]) -> None:
    """Run nothing: nobody is named to whom anything could be sent."""
    del job, then
