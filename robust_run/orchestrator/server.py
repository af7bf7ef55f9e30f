"""Where workers of all roles reach the orchestrator: who they are, what they are told, and their queues. One event loop.

Only who proves that it knows the job's secret is heard. A worker whose incarnation is older than one that has been here is
refused, and so is what is left of it: it was given up, however long it goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.control.errors import ProtocolError
from robust_run.launcher.control.handshake import printable
from robust_run.orchestrator.queue.book import QueueBook
from robust_run.orchestrator.queue.core import Answer as QueueAnswer
from robust_run.orchestrator.queue.core import counts, next_expiry_s, position
from robust_run.orchestrator.queue.waiting import Waiting
from robust_run.orchestrator.words import Event, MemberName, RankGone, RankReady
from robust_run.roles.queue_words import GiveBack, Put, QueueEvent, Release
from robust_run.roles.wire import Frames, OrchestratorHalf
from robust_run.roles.words import (
    Answer,
    FromWorker,
    Hello,
    Me,
    Member,
    PositionCall,
    Proof,
    QueueCall,
    ReadyCall,
    Refused,
    Told,
    ToWorker,
    Welcome,
)

#: Who has not proven itself after so long is sent away.
PATIENCE_S = 5.0
MOST_UNPROVEN = 256
MOST_WAIT_S = 60.0
"""An answer waits no longer; who wants to wait longer asks again."""
MOST_BACKLOG_BYTES = 256 << 20


class Worker(asyncio.Protocol):
    """A connection of one worker."""

    def __init__(self, server: RoleServer) -> None:
        self._server = server
        self._half: OrchestratorHalf | None = OrchestratorHalf(server.secret)
        self._frames = Frames(FromWorker)
        self._transport: asyncio.Transport | None = None
        self.me: Me | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.came(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._frames.feed(data)
        try:
            while self._transport is not None and (message := self._frames.next()) is not None:
                self._take(message)
        except ProtocolError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See `asyncio.Protocol`."""
        self._transport = None
        self._server.went(self)

    def send(self, message: ToWorker) -> None:
        """Send a message; a worker that reads none is given up."""
        if self._transport is None:
            return
        try:
            self._transport.write(self._frames.frame(message))
        except ProtocolError as error:
            self.end(str(error))
            return
        if self._transport.get_write_buffer_size() > MOST_BACKLOG_BYTES:
            self._transport.abort()

    def end(self, why: str = "") -> None:
        """Hang up, with a word where it may be read."""
        if self._transport is not None:
            if why:
                self._transport.write(self._frames.frame(Refused(why=printable(why))))
            self._transport.close()

    def _take(self, message: object) -> None:
        if self._half is None:
            self._server.hear(self, message)
        elif isinstance(message, Hello):
            self.send(self._half.challenge(message))
        elif isinstance(message, Proof):
            keys = self._half.check(message)
            self._half = None
            self._frames.trust(*keys)
            self._server.let_in(self, message)
        else:
            raise ProtocolError(f"a {type(message).__name__} in the middle of the handshake")


class RoleServer:
    """All workers of a job. `tell`: takes in what happens to ranks; `members`: what is known of them now."""

    def __init__(
        self,
        secret: bytes,
        queues: QueueBook,
        clock: Clock,
        tell: Callable[[Event], None],
        members: Callable[[], Mapping[str, Member]],
    ) -> None:
        self.secret = secret
        self.queues = queues
        self._clock = clock
        self._tell = tell
        self._members = members
        self._workers: dict[str, Worker] = {}
        """By consumer: the newest incarnation of each."""
        self._newest: dict[str, tuple[int, int]] = {}
        self._unproven: set[Worker] = set()
        self._waiting: dict[str, Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int = 0) -> int:
        """Begin; return the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: Worker(self), host, port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Hang up on all."""
        if self._server is not None:
            self._server.close()
        if self._timer is not None:
            self._timer.cancel()
        for worker in [*self._workers.values(), *self._unproven]:
            worker.end()

    def came(self, worker: Worker) -> None:
        """Somebody has connected."""
        if len(self._unproven) >= MOST_UNPROVEN:
            next(iter(self._unproven)).end()
        self._unproven.add(worker)
        asyncio.get_running_loop().call_later(PATIENCE_S, self._too_late, worker)

    def _too_late(self, worker: Worker) -> None:
        if worker in self._unproven:
            worker.end()

    def let_in(self, worker: Worker, proof: Proof) -> None:
        """Somebody has proven that it knows the secret. An older incarnation of itself is sent away."""
        me = proof.me
        self._unproven.discard(worker)
        if me.member not in self._members():
            worker.end(f"this job has no member {me.member}")
            return
        if me.incarnation < self._newest.get(me.consumer, (0, 0)):
            worker.end(
                f"a later start of {me.consumer} has been here; this one (start {me.serial}.{me.attempt}) was given up"
            )
            return
        before = self._workers.get(me.consumer)
        is_new = me.incarnation != self._newest.get(me.consumer)
        self._newest[me.consumer] = me.incarnation
        self._workers[me.consumer] = worker
        worker.me = me
        if before is not None:
            before.me = None
            before.end("a later start of the same rank has connected")
        self._reconcile(me, {} if is_new else proof.holds)
        worker.send(Welcome(members=tuple(self._members().values())))

    def went(self, worker: Worker) -> None:
        """A connection has ended: its process has, or is about to come back."""
        self._unproven.discard(worker)
        for waiting in self._waiting.values():
            waiting.forget(worker)
        me = worker.me
        if me is None or self._workers.get(me.consumer) is not worker:
            return
        del self._workers[me.consumer]
        self.queues.consumer_gone(me.consumer, self._clock.monotonic_s())
        self._go_on()
        self._tell(RankGone(member=_name(me), serial=me.serial, rank=me.rank, attempt=me.attempt))

    def changed(self, member: Member) -> None:
        """Tell everybody of a member."""
        for worker in list(self._workers.values()):
            worker.send(Told(member=member))

    def hear(self, worker: Worker, message: object) -> None:
        """Take in a request of a worker that was let in."""
        me = worker.me
        if me is None:
            return  # it was sent away: nothing that it says has any consequence
        try:
            if isinstance(message, ReadyCall):
                self._tell(
                    RankReady(
                        member=_name(me),
                        serial=me.serial,
                        rank=me.rank,
                        attempt=me.attempt,
                        address=printable(message.address),
                    )
                )
                worker.send(Answer(number=message.number))
            elif isinstance(message, QueueCall):
                self._hear_queue(worker, me, message)
            elif isinstance(message, PositionCall):
                state = self.queues.open(message.queue, self._clock.monotonic_s()).state
                found = position(state, me.consumer)
                worker.send(Answer(number=message.number, position=found, counts=counts(state)))
        except RobustRunError as error:
            number = getattr(message, "number", 0)
            worker.send(Answer(number=number, accepted=False, error=str(error)))

    def _hear_queue(self, worker: Worker, me: Me, call: QueueCall) -> None:
        now_s = self._clock.monotonic_s()

        def answer(found: QueueAnswer) -> None:
            worker.send(
                Answer(
                    number=call.number,
                    items=found.items,
                    accepted=found.accepted,
                    lost=found.lost,
                    error=found.flaw,
                )
            )

        event = _of(call.event, me.consumer)
        wait_s = min(max(call.wait_s, 0.0), MOST_WAIT_S)
        self._at(call.queue, now_s).tell(event, now_s, wait_s, worker, answer)
        self._wake_later()

    def _reconcile(self, me: Me, holds: Mapping[str, tuple[int, ...]]) -> None:
        """A worker is back, or new in its place: what is leased to it, and it does not hold, waits again."""
        now_s = self._clock.monotonic_s()
        for name, queue in self.queues.queues.items():
            held = frozenset(holds.get(name, ()))
            leased = [
                n for n, each in queue.state.held.items() if each.standing == "leased" and each.consumer == me.consumer
            ]
            lacks = tuple(n for n in leased if n not in held)
            if lacks:
                queue.tell(GiveBack(consumer=me.consumer, numbers=lacks), now_s)
        self._go_on()

    def _at(self, name: str, now_s: float) -> Waiting:
        if name not in self._waiting:
            self._waiting[name] = Waiting(self.queues.open(name, now_s))
        return self._waiting[name]

    def _go_on(self) -> None:
        now_s = self._clock.monotonic_s()
        for waiting in self._waiting.values():
            waiting.go_on(now_s)
        self._wake_later()

    def _wake_later(self) -> None:
        """See to it that who has waited long enough is answered, and that leases that are over are given to others."""
        if self._timer is not None:
            self._timer.cancel()
        moments = [each.next_s() for each in self._waiting.values()]
        moments += [next_expiry_s(each.queue.state) for each in self._waiting.values() if each.has_takers]
        at_s = min((each for each in moments if each is not None), default=None)
        if at_s is None:
            self._timer = None
            return
        delay_s = max(at_s - self._clock.monotonic_s(), 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s + 0.001, self._go_on)


def _name(me: Me) -> MemberName:
    return MemberName(me.role, me.index)


def _of(event: QueueEvent, consumer: str) -> QueueEvent:
    """Return an event as what the worker that sent it does: nobody acts for another."""
    return event if isinstance(event, (Put, Release)) else msgspec.structs.replace(event, consumer=consumer)
