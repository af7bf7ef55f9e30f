"""Reservations take long: what happens to them when workers die, come back, or are refused meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins
from robust_run.ckpt_io.memory.budget import MemoryFacts
from robust_run.ckpt_io.memory.buffers import Ledger
from robust_run.ckpt_io.memory.frames import take
from robust_run.ckpt_io.memory.keeper.keeper import Keeper
from robust_run.ckpt_io.memory.keeper.peers import Peer
from robust_run.ckpt_io.memory.protocol import Attach, FromKeeper, Refused, Reserve, Reserved

MIB = 1 << 20
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromKeeper)


class Ground:
    """A keeper whose threads run when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []
        self.told: list[Any] = []
        self.keeper = Keeper(Ledger(MemoryFacts, 64 * MIB), self.told.append, self._run, lambda: 0.0, lambda: 0.0)
        self.sockets: list[socket.socket] = []

    def _run(self, job: Callable[[], Any], then: Callable[[Any], None], *, is_long: bool) -> None:
        def work() -> None:
            try:
                result = job()
            except Exception as error:
                result = error
            then(result)

        self.jobs.append(work)

    def finish(self) -> None:
        while self.jobs:
            self.jobs.pop(0)()

    def begin_attempt(self, attempt: int) -> None:
        self.keeper.begin_attempt(AttemptBegins(attempt=attempt, ranks=(0,), world_size=1))

    def worker(self, attempt: int) -> tuple[Peer, socket.socket]:
        ours, theirs = socket.socketpair()
        self.sockets += [ours, theirs]
        ours.setblocking(False)
        peer = Peer(theirs, len(self.sockets))
        self.keeper.says(peer, Attach(rank=0, world_size=1, attempt=attempt))
        self.answers(ours)
        return peer, ours

    def answers(self, connection: socket.socket) -> list[Any]:
        try:
            content, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 8)
        except BlockingIOError:
            return []
        for each in descriptors:
            socket.close(each)
        came, found = bytearray(content), []
        while (body := take(came)) is not None:
            found.append(_decoder.decode(body))
        return found

    def end(self) -> None:
        self.keeper._free(tuple(each.id for each in self.keeper.holdings.buffers))
        for each in self.sockets:
            each.close()


@pytest.fixture
def ground() -> Iterator[Ground]:
    found = Ground()
    yield found
    found.end()


def test_a_rank_that_comes_back_while_its_buffers_are_reserved_gets_them(ground: Ground) -> None:
    ground.begin_attempt(0)
    first, _ = ground.worker(0)
    ground.keeper.says(first, Reserve(size_bytes=MIB))
    ground.begin_attempt(1)
    ground.keeper.gone(first)
    second, ours = ground.worker(1)
    ground.keeper.says(second, Reserve(size_bytes=MIB))
    assert ground.answers(ours) == []
    ground.finish()
    (answer,) = ground.answers(ours)
    assert isinstance(answer, Reserved) and len(answer.buffers) == 3
    assert [each.id for each in ground.keeper.holdings.buffers] == [1, 2, 3]


def test_one_that_was_refused_larger_buffers_keeps_those_it_has(ground: Ground) -> None:
    ground.begin_attempt(0)
    peer, ours = ground.worker(0)
    ground.keeper.says(peer, Reserve(size_bytes=MIB))
    ground.finish()
    assert isinstance(ground.answers(ours)[0], Reserved)
    ground.keeper.says(peer, Reserve(size_bytes=500 * MIB))
    ground.finish()
    assert isinstance(ground.answers(ours)[0], Refused)
    ground.keeper.says(peer, Reserve(size_bytes=MIB))
    ground.finish()
    (answer,) = ground.answers(ours)
    assert isinstance(answer, Reserved) and len(answer.buffers) == 3
