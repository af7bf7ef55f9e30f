"""Where a node of a job listens, whether it leads or not: other voters are heard always, nodes and workers by who leads."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from robust_run.orchestrator.connection import Worker
from robust_run.orchestrator.entrance import Entrance
from robust_run.orchestrator.listening import hold
from robust_run.orchestrator.model.node_words import Several
from robust_run.orchestrator.model.succession_words import ASKS, PEER, InRun
from robust_run.orchestrator.server import RoleServer
from robust_run.orchestrator.succession.replica import Replica
from robust_run.roles.words import Me, Welcome

if TYPE_CHECKING:
    import socket
    import ssl


class Door:
    """`listener`: what the guard holds, so that it is there whichever process is."""

    gate = None

    def __init__(self, secret: bytes, listener: socket.socket, context: ssl.SSLContext | None = None) -> None:
        self.secret = secret
        self.port: int = listener.getsockname()[1]
        self.replica: Replica | None = None
        """None: this node has no vote."""
        self.leading: RoleServer | None = None
        self._listener, self._context = listener, context
        self._entrance = Entrance()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Worker(self), sock=self._listener.dup(), ssl=self._context)

    def close(self) -> None:
        """Take nobody in any more."""
        if self._server is not None:
            self._server.close()
        self._entrance.close()

    def came(self, worker: Worker) -> None:
        """Somebody has connected."""
        self._entrance.came(worker)

    def let_in(self, worker: Worker, me: Me, holds: Mapping[str, tuple[int, ...]]) -> None:
        """Somebody has proven that it knows the secret."""
        self._entrance.passed(worker)
        if me.role == PEER:
            worker.me = me
            worker.send(Welcome(members=()))
        elif me.role == ASKS:
            worker.send(Welcome(members=()))
            worker.send(self._in_run())
            worker.end()
        elif self.leading is not None:
            worker.goes_to(self.leading)
            self.leading.let_in(worker, me, holds)
        else:
            worker.end()  # no word: it is to look again

    def _in_run(self) -> InRun:
        if self.replica is None or self.replica.is_over:
            return InRun(run_id="", leads=False)
        return InRun(run_id=self.replica.run_id, leads=self.leading is not None and self.replica.may_act())

    def hear(self, worker: Worker, message: object) -> None:
        """Another voter says something."""
        if self.replica is not None:
            self.replica.hear(worker, message)
        else:
            worker.end("this node has no vote")

    def went(self, worker: Worker) -> None:
        """A connection has ended."""
        self._entrance.passed(worker)
        if self.replica is not None:
            self.replica.went(worker)


def listen(meeting: Several) -> socket.socket:
    """Return where a node that does not found the job is reached: at a port like that where all meet, or any. Raises OSError."""
    return hold(meeting.port, 0)
