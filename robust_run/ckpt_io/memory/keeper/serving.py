"""The keeper's loop: one thread that waits for its agent, its workers and its own threads, and never for one of them alone."""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec

from robust_run.ckpt_io.memory import node_memory, place
from robust_run.ckpt_io.memory.agent_protocol import (
    AttemptBegins,
    Bring,
    CopyTo,
    FlushLast,
    FromAgent,
    GoBy,
    KeeperNote,
    KeeperReady,
    KeeperSetup,
    LookInMemory,
)
from robust_run.ckpt_io.memory.buffers import Ledger
from robust_run.ckpt_io.memory.copies.greeting import KEY_BYTES, Credentials
from robust_run.ckpt_io.memory.copies.keeper_copies import CopyThreads
from robust_run.ckpt_io.memory.copies.server import CopyServer, Host
from robust_run.ckpt_io.memory.frames import FrameRefused
from robust_run.ckpt_io.memory.keeper.keeper import Keeper
from robust_run.ckpt_io.memory.keeper.peers import Peer
from robust_run.ckpt_io.memory.protocol import SCHEMA, FromWorker

#: Connections of workers at a time.
MOST_PEERS = 512
_THREADS = 4
#: Parts that are fetched from other nodes at the same time.
_FETCHES = 8
_Result = TypeVar("_Result")
_from_agent: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromAgent)
_from_worker: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromWorker)


class Loop:
    """Serves until the agent hangs up."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = Peer(agent, 0)
        self._selector = selectors.DefaultSelector()
        self._listening: socket.socket | None = None
        self._folder = ""
        self._is_accepting = False
        self._peers: dict[int, Peer] = {}
        self._next_number = 1
        self._keeper: Keeper | None = None
        self._long, self._short = ThreadPoolExecutor(_THREADS), ThreadPoolExecutor(_THREADS)
        self._sends, self._fetches = ThreadPoolExecutor(1), ThreadPoolExecutor(_FETCHES)
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)

    def serve(self) -> None:
        """Serve. Raises OSError where the socket cannot be made."""
        self._selector.register(self._agent.socket, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        try:
            while self._agent.is_open:
                self._turn(self._keeper.answer_late() if self._keeper is not None else None)
        finally:
            if self._folder:
                place.remove(self._folder)

    def tell(self, note: KeeperNote) -> None:
        """Tell people something."""
        self._agent.send(note)

    def _turn(self, timeout_s: float | None) -> None:
        ready = {key.fileobj for key, _ in self._selector.select(timeout_s)}
        if self._agent.socket in ready:  # first: what it says of an attempt was sent before workers of that could start
            self._hear_agent()
        if self._wake_in in ready:
            self._finish_jobs()
        for peer in [each for each in self._peers.values() if each.socket in ready]:
            self._hear(peer)
        if self._listening in ready:
            self._accept()
        self._tidy()

    # --- the agent

    def _hear_agent(self) -> None:
        self._agent.flush()
        for message in self._messages(self._agent, _from_agent):
            if isinstance(message, KeeperSetup):
                self._set_up(message)
            elif self._keeper is not None:
                for peer in list(self._peers.values()):  # what workers said before they died counts
                    self._hear(peer)
                if isinstance(message, AttemptBegins):
                    self._keeper.begin_attempt(message)
                elif isinstance(message, LookInMemory):
                    self._keeper.look(message)
                elif isinstance(message, CopyTo):
                    self._keeper.copy_to(message)
                elif isinstance(message, GoBy):
                    self._keeper.striding.go_by(message)
                elif isinstance(message, Bring):
                    self._keeper.bring(message)
                elif isinstance(message, FlushLast):
                    self._keeper.flush_last(message)

    def _set_up(self, setup: KeeperSetup) -> None:
        if self._keeper is not None:
            return
        if setup.schema != SCHEMA:
            raise OSError(f"the memory keeper speaks version {SCHEMA}, its agent {setup.schema}")
        self._listening = place.listen(setup.folder)
        self._folder = setup.folder
        ledger = Ledger(node_memory.read, setup.limit_bytes)
        ours = _credentials(setup)
        threads = CopyThreads(ours, partial(self._submit, self._sends), partial(self._submit, self._fetches))
        self._keeper = Keeper(ledger, self._agent.send, self._run, time.time, time.monotonic, threads)
        self._keeper.flushes.job = setup.job
        self._accept_on(True)
        self._agent.send(KeeperReady(port=self._listen_to_keepers(setup, ours)))

    def _listen_to_keepers(self, setup: KeeperSetup, ours: Credentials) -> int:
        """Let keepers of other nodes in from now on; return the port that they call at, 0: they cannot."""
        if not setup.address or self._keeper is None:
            return 0
        try:
            if len(setup.key) != KEY_BYTES:
                raise OSError(f"the key has {len(setup.key)} bytes in place of {KEY_BYTES}")
            if ours.trouble:
                raise OSError(ours.trouble)
            listening = place.listen_at(setup.address)
        except OSError as error:
            why = error.strerror or error
            self.tell(
                KeeperNote(text=f"no checkpoints in memory are copied to or from this node: {setup.address}: {why}")
            )
            return 0
        host = Host(self._keeper.copies.desk, self._keeper.pool.ledger, self._call)
        server = CopyServer(listening, ours, host.serve)
        threading.Thread(target=server.run, daemon=True).start()
        return int(listening.getsockname()[1])

    # --- workers

    def _accept(self) -> None:
        while self._listening is not None:
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError:  # no descriptors left: on when someone hangs up
                self._accept_on(False)
                return
            if not place.is_ours(connection) or not self._has_place():
                connection.close()
                continue
            peer = Peer(connection, self._next_number)
            self._next_number += 1
            self._peers[peer.number] = peer
            self._selector.register(connection, selectors.EVENT_READ)

    def _has_place(self) -> bool:
        """Whether one more may come; the first that has not said who it is makes room."""
        if len(self._peers) < MOST_PEERS:
            return True
        for peer in [each for each in self._peers.values() if each.rank is None]:
            self._hear(peer)  # it may have said so meanwhile
            if peer.rank is None:
                self._hang_up(peer)
                return True
        return False

    def _hear(self, peer: Peer) -> None:
        if self._keeper is None or not peer.is_open:
            return
        peer.flush()
        for message in self._messages(peer, _from_worker):
            self._keeper.says(peer, message)

    def _messages(self, peer: Peer, decoder: msgspec.msgpack.Decoder[Any]) -> Iterator[Any]:
        """Yield what came. One who sends what is no message is hung up on; what it said before counts."""
        try:
            for body in peer.receive():
                yield decoder.decode(body)
        except (FrameRefused, msgspec.MsgspecError, RecursionError, ValueError) as error:
            peer.is_open = False
            if peer is not self._agent:
                who = "a process" if peer.rank is None else f"rank {peer.rank}"
                self._agent.send(KeeperNote(text=f"{who} sent the memory keeper no message of its own: {error}"))

    def _tidy(self) -> None:
        """Hang up on those that are done with, and wait for those that do not read yet."""
        for peer in [each for each in self._peers.values() if not each.is_open]:
            self._hang_up(peer)
        for peer in (self._agent, *self._peers.values()):
            if peer.is_open:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.has_unsent else 0)
                if self._selector.get_key(peer.socket).events != wanted:
                    self._selector.modify(peer.socket, wanted)

    def _hang_up(self, peer: Peer) -> None:
        del self._peers[peer.number]
        self._selector.unregister(peer.socket)
        peer.close()
        if self._keeper is not None:
            self._keeper.gone(peer)
        self._accept_on(True)

    def _accept_on(self, is_wanted: bool) -> None:
        if self._listening is not None and is_wanted != self._is_accepting:
            self._is_accepting = is_wanted
            if is_wanted:
                self._selector.register(self._listening, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listening)

    # --- threads

    def _run(self, job: Callable[[], _Result], then: Callable[[_Result | Exception], None], *, is_long: bool) -> None:
        self._submit(self._long if is_long else self._short, job, then)

    def _submit(
        self, pool: ThreadPoolExecutor, job: Callable[[], _Result], then: Callable[[_Result | Exception], None]
    ) -> None:
        def work() -> None:
            result: _Result | Exception
            try:
                result = job()
            except Exception as error:
                result = error
            self._have_done(lambda: then(result))

        pool.submit(work)

    def _call(self, job: Callable[[], _Result]) -> _Result:
        """Have something done in the loop's thread, and wait for it. For another thread."""
        done: Future[_Result] = Future()

        def work() -> None:
            try:
                done.set_result(job())
            except Exception as error:
                done.set_exception(error)

        self._have_done(work)
        return done.result()

    def _have_done(self, work: Callable[[], None]) -> None:
        self._done.put(work)
        with contextlib.suppress(BlockingIOError):  # it is awake enough
            self._wake_out.send(b"\0")

    def _finish_jobs(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_in.recv(4096)
        with contextlib.suppress(queue.Empty):
            while True:
                self._done.get_nowait()()


def _credentials(setup: KeeperSetup) -> Credentials:
    """Return what this keeper shows to others; one whose certificate cannot be used neither calls nor is called."""
    if setup.tls is None or not setup.key:
        return Credentials(setup.key)
    from robust_run.ckpt_io.memory.copies.link_tls import LinkTls  # ssl is for those who use it
    from robust_run.errors import UserError

    try:
        return Credentials(setup.key, LinkTls(setup.tls))
    except UserError as error:
        return Credentials(setup.key, trouble=str(error))
