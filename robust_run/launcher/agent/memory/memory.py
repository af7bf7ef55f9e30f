"""What an agent does about checkpoints in memory: has a keeper from the first workers on, tells it of attempts and of other
nodes, and says where other nodes' keepers reach it. Imported where a job keeps checkpoints in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.model.resume_events import MemoryNeeds, MemoryPeers, MemoryReady, MemoryStrides

if TYPE_CHECKING:
    from robust_run.ckpt_io.seen import MemoryHeld
    from robust_run.launcher.agent.memory.keeper import Listen, MemoryKeeper
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.model.actions import StartAttempt


class AgentMemory:
    """One agent's. Used from its thread, but for `held`."""

    def __init__(
        self,
        node: Node,
        node_id: str,
        report: Callable[[MemoryReady | MemoryNeeds], None],
        make: Callable[[Node, Callable[[int], None]], MemoryKeeper] | None = None,
    ) -> None:
        """`make`: what makes the handle on a keeper that starts with the first attempt; None: `keeper_of`."""
        self._node, self._make = node, make or keeper_of
        self._node_id = node_id
        self._report = report
        self._keeper: MemoryKeeper | None = None
        """None: none was started yet."""
        self._listen: Listen | None = None
        self._attempt = -1
        """The newest that the keeper was told of."""
        self._port = 0
        self._peers: MemoryPeers | None = None
        """The newest order; it may come before the attempt has begun here."""

    def attach(self, listen: Listen) -> None:
        """Hear what the keeper says as it comes, from now on.

        Where a job has ranks on one node at a time, only standbys can keep copies: they have a keeper before they have ranks.
        """
        self._listen = listen
        if self._keeper is not None:
            self._keeper.attach(listen)
        many = self._node.spec.many
        if self._keeper is None and self._node.spec.ckpt_copies and many is not None and many.most == 1:
            self._made().open()

    def folder_for(self, order: StartAttempt) -> str:
        """Tell the keeper of an attempt, and return where workers find it; empty: nowhere. A replay is not to save anything.

        The first workers are started before their keeper (`begun`).
        """
        if order.replay_steps or (self._keeper is not None and not self._begin(order)):
            return ""
        return self._node.memory_folder

    def begun(self, order: StartAttempt) -> None:
        """Workers of an attempt have been started: now there is time to start their keeper, if there is none."""
        if order.replay_steps:
            return
        if self._keeper is None:
            self._made()
            self._begin(order)
        elif self._port:
            self._say_ready(self._port)

    def obey(self, order: MemoryPeers | MemoryStrides) -> None:
        """Have copies sent to the node that is named, once its attempt has begun here; or the same steps kept as elsewhere."""
        if isinstance(order, MemoryStrides):
            if self._keeper is not None:
                self._keeper.go_by(order)
            return
        self._peers = order
        if self._keeper is not None and order.attempt == self._attempt:
            self._keeper.copy_to(order)

    def held(self) -> MemoryHeld:
        """Return what the keeper holds whole, and the room for more: where there is none yet, what one would have. For another
        thread than the agent's, which may wait.
        """
        if self._keeper is not None and self._keeper.is_running:
            return self._keeper.held()
        from robust_run.ckpt_io.memory import budget, node_memory
        from robust_run.ckpt_io.seen import MemoryHeld

        return MemoryHeld(room_bytes=budget.room(node_memory.read(), self._node.spec.ckpt_memory_bytes, 0).bytes)

    @property
    def keeper(self) -> MemoryKeeper | None:
        """The keeper that runs; None: there is none, or it has died."""
        return self._keeper if self._keeper is not None and self._keeper.is_running else None

    def end(self) -> None:
        """Let the keeper end: no attempt follows here."""
        if self._keeper is not None:
            self._keeper.end()

    def _made(self) -> MemoryKeeper:
        self._keeper = self._make(self._node, self._say_ready)
        self._keeper.when_needed = self._say_needs
        if self._listen is not None:
            self._keeper.attach(self._listen)
        return self._keeper

    def _begin(self, order: StartAttempt) -> bool:
        assert self._keeper is not None
        if not self._keeper.begin(order):
            return False
        self._attempt = order.attempt
        if self._peers is not None and self._peers.attempt == order.attempt:
            self._keeper.copy_to(self._peers)
        return True

    def _say_needs(self, attempt: int, keeps: int, copies: int) -> None:
        self._report(MemoryNeeds(attempt=attempt, node=self._node_id, keeps=keeps, copies=copies))

    def _say_ready(self, port: int) -> None:
        """Say where other keepers reach ours; 0: nowhere any more."""
        if not port and not self._port:
            return
        self._port = port
        node = self._node
        ready = MemoryReady(attempt=self._attempt, node=self._node_id, host=node.address, port=port)
        self._report(ready if node.spec.ckpt_copies else msgspec.structs.replace(ready, takes_copies=False))


def keeper_of(node: Node, ready: Callable[[int], None]) -> MemoryKeeper:
    """Return the handle on a node's keeper, which is started with its first attempt. `ready`: see `MemoryKeeper`."""
    from robust_run.ckpt_io.memory.agent_protocol import KeeperSetup, TlsFiles
    from robust_run.launcher.agent.memory.keeper import MemoryKeeper

    many = node.spec.many
    tls = TlsFiles(cert=many.tls_cert, key=many.tls_key, ca=many.tls_ca) if many is not None else TlsFiles()
    setup = KeeperSetup(
        folder=node.memory_folder,
        limit_bytes=node.spec.ckpt_memory_bytes,
        address=node.address if node.memory_key else "",
        key=node.memory_key,
        tls=tls if tls.cert or tls.ca else None,
        job=node.spec.run_id,
    )
    return MemoryKeeper(node.helpers.start, node.env, setup, node.say, ready)
