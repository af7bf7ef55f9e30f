"""A save that comes while parts are being hashed waits a moment for a buffer, so that all nodes keep the same steps."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from robust_run.ckpt_io.memory import node_memory
from robust_run.ckpt_io.memory.agent_protocol import AttemptBegins
from robust_run.ckpt_io.memory.buffers import Ledger
from robust_run.ckpt_io.memory.frames import take
from robust_run.ckpt_io.memory.keeper.keeper import BEGIN_S, Keeper
from robust_run.ckpt_io.memory.keeper.peers import Peer
from robust_run.ckpt_io.memory.protocol import Attach, Begin, Copied, FromKeeper, Place, Reserve, Skip

_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromKeeper)


class Ground:
    """A keeper whose hashing is done when the test says so, and one worker."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.hashing: list[Callable[[], None]] = []
        self.keeper = Keeper(
            Ledger(node_memory.read, None), lambda _: None, self.run, lambda: self.now_s, lambda: self.now_s
        )
        self.worker, theirs = socket.socketpair()
        self.worker.setblocking(False)
        self.peer = Peer(theirs, 1)
        self.keeper.begin_attempt(AttemptBegins(attempt=0, ranks=(0,), world_size=1))
        self.keeper.says(self.peer, Attach(rank=0, world_size=1, attempt=0))
        self.keeper.says(self.peer, Reserve(size_bytes=4096))
        self.answers()

    def run(self, job: Callable[[], Any], then: Callable[[Any], None], *, is_long: bool) -> None:
        if is_long:
            then(job())
        else:
            self.hashing.append(lambda: then(job()))

    def answers(self) -> list[Any]:
        came = bytearray()
        while True:
            try:
                came += self.worker.recv(1 << 16)
            except BlockingIOError:
                break
        found = []
        while (body := take(came)) is not None:
            found.append(_decoder.decode(body))
        return found

    def save(self, step: int) -> list[Any]:
        self.keeper.says(self.peer, Begin(step=step))
        answers = self.answers()
        for answer in answers:
            if isinstance(answer, Place):
                self.keeper.says(self.peer, Copied(step=step, buffer=answer.buffer, used_bytes=4096))
        return answers


@pytest.fixture
def ground() -> Iterator[Ground]:
    found = Ground()
    yield found
    found.worker.close()
    found.peer.close()


def test_it_goes_where_a_part_was_hashed_as_soon_as_that_is_done(ground: Ground) -> None:
    for step in (1, 2, 3):
        assert isinstance(ground.save(step)[0], Place)
    assert ground.save(4) == [], "all three are being hashed: it waits"
    ground.hashing.pop(0)()
    assert [type(each) for each in ground.answers()] == [Place]


def test_it_does_not_wait_for_long(ground: Ground) -> None:
    for step in (1, 2, 3, 4):
        ground.save(step)
    assert ground.keeper.answer_late() == pytest.approx(BEGIN_S)
    ground.now_s += BEGIN_S
    assert ground.keeper.answer_late() is None
    assert [type(each) for each in ground.answers()] == [Skip]
    ground.hashing.pop(0)()
    assert ground.answers() == [], "it is answered once"


def test_one_that_has_gone_is_not_answered(ground: Ground) -> None:
    for step in (1, 2, 3, 4):
        ground.save(step)
    ground.keeper.gone(ground.peer)
    ground.hashing.pop(0)()
    assert ground.keeper.answer_late() is None
