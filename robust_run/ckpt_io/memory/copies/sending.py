"""When what this node's ranks have saved is sent to the node that keeps its copies. In the keeper's thread.

No save waits for it: a part that is sent is "being read", so that its rank goes on with two buffers; which generations are sent,
and what that has to do with other nodes, is `pace`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from robust_run.ckpt_io.memory import generations, pace
from robust_run.ckpt_io.memory.agent_protocol import CopyTo, KeeperNote
from robust_run.ckpt_io.memory.copies.copying import CopyFailed, Outgoing, Sender, close_all
from robust_run.ckpt_io.memory.copies.words import Push
from robust_run.ckpt_io.memory.generations import Generation, HeldBuffer, Holdings
from robust_run.ckpt_io.memory.pace import Pace
from robust_run.ckpt_io.memory.pool import Pool

#: After a failure, and after each that follows.
RETRIES_S = (2.0, 5.0, 10.0, 20.0, 40.0, 60.0)
#: Where the other node is not ready yet, and said so: that costs a word, and until it is, the loss of a node costs what storage
#: lacks.
SOON_S = (0.1, 0.2, 0.5, 1.0)
#: A generation that takes longer to send is worth a line.
SLOW_S = 60.0
#: Where no generation has come for so long, and twice as long as between the two before, the newest is sent, whichever it is.
QUIET_S = 2.0


class RunsSend(Protocol):
    """Runs a job in the thread that sends, then `then` in the keeper's."""

    def __call__(self, job: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Return at once."""
        ...


class Sending:
    """One node's."""

    def __init__(
        self,
        pool: Pool,
        sender: Sender,
        run: RunsSend,
        tell: Callable[[KeeperNote], None],
        now_s: Callable[[], float],
        begun: Callable[[], int] = lambda: -1,
    ) -> None:
        """`begun`: the newest step that a rank of this node has begun to save in this attempt."""
        self._begun = begun
        self._pool, self._sender, self._run, self._tell, self._now_s = pool, sender, run, tell, now_s
        self.pace = Pace()
        self._to: CopyTo | None = None
        self._ordered: CopyTo | None = None
        """The newest order; of an attempt that may not have begun."""
        self._is_busy = False
        self._seen: Generation | None = None
        """The newest that was whole here."""
        self._seen_s = self._apart_s = 0.0
        """When that was, and how long after the one before."""
        self._kept: Generation | None = None
        """The newest that has been sent."""
        self._pinned: frozenset[Generation] = frozenset()
        """What had been sent when the newest sending began, and what that sends."""
        self._due_s: float | None = None
        """When to send the newest, whichever it is."""
        self._failures = self._laters = 0
        """In a row: those, and how often the other node was not ready yet."""
        self._has_told = self._has_told_slow = False

    def begin_attempt(self, attempt: int) -> None:
        """Stop: who keeps copies is told anew. What is being sent is given up, so that ranks have their buffers back."""
        self._stop()
        self.pace, self._seen, self._apart_s = Pace(), None, 0.0
        self._has_told_slow = False
        if self._ordered is not None and self._ordered.attempt == attempt:
            self._start(self._ordered)

    def copy_to(self, order: CopyTo, attempt: int) -> None:
        """Send to another node from now on, in that attempt."""
        self._ordered = order
        if order.attempt == attempt:
            self._start(order)

    def _start(self, order: CopyTo) -> None:
        if self._to is not None and (self._to.host, self._to.port) == (order.host, order.port):
            return
        self._stop()
        if order.host:
            self._to, self._due_s = order, self._now_s()

    def _stop(self) -> None:
        self._to, self._kept, self._due_s, self._has_told = None, None, None, False
        self._failures = self._laters = 0
        self._pinned = frozenset()
        if self._is_busy:
            self._sender.cut()

    @property
    def has_peer(self) -> bool:
        """Whether a node was named in this attempt to which copies are sent: then another one sends to this one."""
        return self._to is not None

    def pinned(self, holdings: Holdings) -> set[int]:
        """Return the buffers with the originals of what other nodes may need once the one with the copies is lost.

        What has arrived stays until the next sending begins: then all other nodes have what was sent before, too.
        """
        return {each.id for each in holdings.buffers if each.part is not None and each.part.generation in self._pinned}

    def look(self, holdings: Holdings) -> None:
        """Note that something has become whole, and send it if it is its turn."""
        parts = generations.whole(holdings)
        if not parts or ((generation := _generation(parts)) <= (self._seen or (-1, -1))):
            return
        now_s = self._now_s()
        self._apart_s = now_s - self._seen_s if self._seen is not None else 0.0
        self._seen, self._seen_s = generation, now_s
        if self._failures or self._to is None:
            return
        self._due_s = now_s + max(QUIET_S, 2 * self._apart_s)
        # Not after the one that was whole before: where the first of a stretch was skipped here, it was not on other nodes.
        if pace.begins_stretch(self.pace.stride, _before(parts), generation[1]):
            self._send(holdings, parts)

    def answer_due(self, holdings: Holdings) -> float | None:
        """Send the newest if it is time; return how long until it may be. None: not before something happens."""
        if self._due_s is None or self._is_busy:
            return None
        wait_s = self._due_s - self._now_s()
        if wait_s > 0:
            return wait_s
        self._due_s = None
        if parts := generations.whole(holdings):
            self._send(holdings, parts)
        return None

    def _send(self, holdings: Holdings, parts: tuple[HeldBuffer, ...]) -> None:
        to, generation = self._to, _generation(parts)
        if to is None or self._is_busy or generation == self._kept:
            return
        sent = self._lend(parts, holdings)
        if sent is None:
            return
        self._is_busy, self._due_s, began_s = True, None, self._now_s()
        self._pinned = frozenset((generation,) if self._kept is None else (self._kept, generation))
        self._sender.begin()

        def job() -> int:
            try:
                return self._sender.send(to, sent)
            finally:
                close_all(sent)

        def then(result: int | Exception) -> None:
            self._is_busy = False
            for each in parts:
                self._pool.returned(each.id)
            if self._to is not to:  # cut: another attempt, or another node
                return
            if isinstance(result, Exception):
                self._failed(result)
            else:
                self._succeeded(generation, result, self._now_s() - began_s)

        self._run(job, then)

    def _lend(self, parts: tuple[HeldBuffer, ...], holdings: Holdings) -> tuple[Outgoing, ...] | None:
        sent: list[Outgoing] = []
        try:
            for each in parts:
                sent.append(self._outgoing(each, holdings))  # noqa: PERF401 - what was lent before it fails is returned
        except OSError as error:  # no descriptors left
            close_all(tuple(sent))
            for each, _ in zip(parts, sent, strict=False):
                self._pool.returned(each.id)
            self._failed(CopyFailed(f"a part cannot be read: {error.strerror or error}"))
            return None
        return tuple(sent)

    def _outgoing(self, each: HeldBuffer, holdings: Holdings) -> Outgoing:
        part = each.part
        assert part is not None, "only what is whole is sent"
        push = Push(
            rank=each.rank,
            ranks=holdings.ranks,
            attempt=part.attempt,
            step=part.step,
            world_size=part.world_size,
            used_bytes=part.used_bytes,
            room_bytes=each.size_bytes,
            digest=part.digest,
            created_s=part.created_s,
            during=holdings.attempt,
            stride=self.pace.own,
        )
        return Outgoing(push=push, descriptor=self._pool.lend(each.id))

    def _succeeded(self, generation: Generation, stride: int, took_s: float) -> None:
        is_first = self._kept is None  # it had buffers reserved over there
        self._kept, self._failures, self._laters, self._has_told = generation, 0, 0, False
        self.pace = msgspec.structs.replace(self.pace, receiver=stride)
        seen = self._seen
        if seen is not None and seen[0] == generation[0] and not is_first:
            # From when it was saved, not from when it was whole: what takes long to hash comes late, too.
            self.pace = pace.sent(self.pace, max(seen[1], self._begun()) - generation[1])
        if seen is not None and seen != generation:
            self._due_s = self._seen_s + max(QUIET_S, 2 * self._apart_s)
        if took_s > SLOW_S and not self._has_told_slow:
            self._has_told_slow = True
            every = (
                f"not every step is copied, but each {self.pace.stride}th"
                if self.pace.stride > 1
                else "it is kept up with"
            )
            self._say(f"copying a step to {self._name} takes {took_s:.0f} s: {every}; training does not wait for it")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, CopyFailed) and error.is_soon:
            self._due_s = self._now_s() + SOON_S[min(self._laters, len(SOON_S) - 1)]
            self._failures, self._laters = 0, self._laters + 1  # it answers
            return
        is_usual = isinstance(error, CopyFailed) and error.is_usual
        may_pass = isinstance(error, CopyFailed) and error.may_pass and not self._failures
        if not is_usual and not may_pass and not self._has_told:
            self._has_told = True
            self._say(
                f"no copies of checkpoints in memory on {self._name}: {error}; it is tried again, training goes on"
            )
        self._due_s = self._now_s() + RETRIES_S[min(self._failures, len(RETRIES_S) - 1)]
        self._failures += 0 if is_usual and not self._failures else 1

    def _say(self, text: str) -> None:
        self._tell(KeeperNote(text=text))

    @property
    def _name(self) -> str:
        """Of the node that is sent to, for people."""
        to = self._to
        return "nobody" if to is None else to.name or f"{to.host}:{to.port}"


def _before(parts: tuple[HeldBuffer, ...]) -> int | None:
    part = parts[0].part
    return part.before if part is not None else None


def _generation(parts: tuple[HeldBuffer, ...]) -> Generation:
    part = parts[0].part
    assert part is not None, "only what is whole is sent"
    return part.generation
