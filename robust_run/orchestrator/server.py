"""Where workers of all roles reach the orchestrator: who they are, what they are told, and their queues. One event loop.

Only who proves that it knows the job's secret is heard. A worker whose incarnation is older than one that has been here is
refused, and so is what is left of it: it was given up, however long it goes on by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from robust_run.errors import RobustRunError
from robust_run.launcher.control.handshake import printable
from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.entrance import Entrance
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.node_words import NODE
from robust_run.orchestrator.model.words import Asked, Event, RankGone, RankReady
from robust_run.orchestrator.nodes.book import NodeBook
from robust_run.orchestrator.queue.serving import QueueService
from robust_run.roles.view_words import RolesView
from robust_run.roles.words import (
    OPERATOR,
    Answer,
    AskCall,
    CodeCall,
    LookCall,
    Me,
    Member,
    PositionCall,
    QueueCall,
    ReadyCall,
    RollbackCall,
    Told,
    UpdateCall,
    Welcome,
)

CodeQuestion = CodeCall | UpdateCall | RollbackCall
if TYPE_CHECKING:
    import socket
    import ssl

#: Who has lost its connection keeps what it works on for so long, unless its launcher says that its process has ended.
COMES_BACK_S = 10.0


class RoleServer:
    """All workers of a job. `tell`: takes in what happens to ranks; `members`: what is known of them now."""

    def __init__(
        self,
        secret: bytes,
        queues: QueueService,
        tell: Callable[[Event], None],
        members: Callable[[], Mapping[str, Member]],
        newest: Callable[[str], tuple[int, int]] = lambda _: (0, 0),
        look: Callable[[], RolesView | None] = lambda: None,
        code: Callable[[CodeQuestion], Answer] | None = None,
    ) -> None:
        """`newest`: which start of a member is known to be the latest, by its launcher and attempt. `look`: how the job is."""
        self.secret = secret
        self.queues = queues
        self._tell = tell
        self._members = members
        self.nodes: NodeBook | None = None
        """Takes in what other nodes say; None: the job has this one."""
        self.gate: Callable[[Callable[[], None]], None] | None = None
        """Does what others see once it may be seen: once a successor would know of it. None: at once."""
        self._newest_start = newest
        self._look = look
        self._code = code
        """Answers what is asked about code; None: nothing is."""
        self._workers: dict[str, Worker] = {}
        """By consumer: the newest incarnation of each."""
        self._newest: dict[str, tuple[int, int]] = {}
        self._over: dict[str, tuple[int, int]] = {}
        """The newest of each whose process has ended, says its launcher."""
        self._away: dict[str, asyncio.TimerHandle] = {}
        """Those that have lost their connection, and may come back."""
        self._entrance = Entrance()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int = 0) -> int:
        """Begin, at an address; return the port. Raises OSError."""
        self._server = await asyncio.get_running_loop().create_server(lambda: Worker(self), host, port)
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def listen_at(self, listener: socket.socket, context: ssl.SSLContext | None) -> int:
        """The same where somebody listens already, who stays; with TLS where there is a context. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Worker(self), sock=listener.dup(), ssl=context)
        found: int = listener.getsockname()[1]
        return found

    def close(self) -> None:
        """Hang up on all."""
        if self._server is not None:
            self._server.close()
        self.queues.close()
        for timer in self._away.values():
            timer.cancel()
        self._entrance.close()
        for worker in [*self._workers.values()]:
            worker.end()

    def came(self, worker: Worker) -> None:
        """Somebody has connected."""
        self._entrance.came(worker)

    def let_in(self, worker: Worker, me: Me, holds: Mapping[str, tuple[int, ...]]) -> None:
        """Somebody has proven that it knows the secret. An older incarnation of itself is sent away."""
        self._entrance.passed(worker)
        if me.role in (OPERATOR, NODE):
            worker.me = me
            worker.send(Welcome(members=()))
            if me.role == NODE and self.nodes is not None:
                self.nodes.came(worker)
            return
        if me.member not in self._members():
            worker.end(f"this job has no member {me.member}")
            return
        newest = max(self._newest.get(me.consumer, (0, 0)), self._newest_start(me.member))
        if me.incarnation < newest or me.incarnation <= self._over.get(me.consumer, (0, -1)):
            worker.end(
                f"a later start of {me.consumer} has been here, or this one has ended: this one"
                f" (start {me.serial}.{me.attempt}) was given up"
            )
            return
        before = self._workers.get(me.consumer)
        if me.incarnation != self._newest.get(me.consumer):
            self.queues.came(me.consumer)
        self._newest[me.consumer] = me.incarnation
        self._workers[me.consumer] = worker
        worker.me = me
        if before is not None:
            self._send_away(
                before, "a later start of the same rank, or a later connection, is here: this one was given up"
            )
        self._is_not_away(me.consumer)
        self.queues.reconcile(me, holds)
        worker.send(Welcome(members=tuple(self._members().values())))

    def went(self, worker: Worker) -> None:
        """A connection has ended: its process has, or is about to come back. Which of them its launcher will say."""
        self._entrance.passed(worker)
        me = worker.me
        if me is not None and me.role == NODE and self.nodes is not None:
            self.nodes.went(worker)
        self._send_away(worker)
        if me is None or self._workers.get(me.consumer) is not worker:
            return
        del self._workers[me.consumer]
        loop = asyncio.get_running_loop()
        self._is_not_away(me.consumer)
        self._away[me.consumer] = loop.call_later(COMES_BACK_S, self._give_up, me.consumer)
        self._tell(RankGone(member=_name(me), serial=me.serial, rank=me.rank, attempt=me.attempt))

    def ended(self, member: MemberName, rank: int | None, incarnation: tuple[int, int]) -> None:
        """The process of a rank has ended, or those of all (None): what they worked on is given to others at once."""
        for consumer in self._consumers(member, rank):
            if self._newest.get(consumer, incarnation) > incarnation:
                continue  # a later one is here already
            self._over[consumer] = max(incarnation, self._over.get(consumer, incarnation))
            worker = self._workers.pop(consumer, None)
            if worker is not None:
                self._send_away(worker, "its launcher says that this process has ended")
            self._is_not_away(consumer)
            self._give_up(consumer)

    def _consumers(self, member: MemberName, rank: int | None) -> set[str]:
        """Return which ranks of a member are here, or have something."""
        if rank is not None:
            return {f"{member}:{rank}"}
        known = {*self._workers, *self._newest, *self.queues.consumers()}
        return {consumer for consumer in known if consumer.startswith(f"{member}:")}

    def _send_away(self, worker: Worker, why: str = "") -> None:
        """Nothing that it asked for is given to it any more."""
        worker.me = None
        self.queues.forget(worker)
        if why:
            worker.end(why)

    def _is_not_away(self, consumer: str) -> None:
        timer = self._away.pop(consumer, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self, consumer: str) -> None:
        self._away.pop(consumer, None)
        self.queues.give_up(consumer)

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
            if me.role == OPERATOR:
                self._hear_operator(worker, message)
            elif me.role == NODE:
                if self.nodes is not None:
                    self.nodes.hear(worker, message)
            elif isinstance(message, ReadyCall):
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
                self.queues.hear(worker, me, message)
            elif isinstance(message, PositionCall):
                self.queues.position(worker, me, message)
        except RobustRunError as error:
            number = getattr(message, "number", 0)
            worker.send(Answer(number=number, accepted=False, error=str(error)))

    def _hear_operator(self, worker: Worker, message: object) -> None:
        """Whoever knows the secret may look, and ask as the user does."""
        if isinstance(message, LookCall):
            worker.send(Answer(number=message.number, view=self._look()))
        elif isinstance(message, AskCall):
            by = printable(message.by)
            self._tell(Asked(what=message.what, role=message.role, members=message.members, by=by))
            worker.send(Answer(number=message.number))
        elif isinstance(message, (CodeCall, UpdateCall, RollbackCall)) and self._code is not None:
            worker.send(self._code(message))


def _name(me: Me) -> MemberName:
    return MemberName(me.role, me.index)
