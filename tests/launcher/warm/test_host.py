"""The agent's side of a warm process, with a process that is played by the test."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec
import pytest

from robust_run.launcher.agent.warm.host import WarmHost
from robust_run.launcher.agent.warm.messages import (
    MakeStandby,
    Preload,
    Preloaded,
    StandbyReady,
    ToWarm,
    WarmStartRefused,
    send,
)

TORCH = ("torch", "torch.distributed")
LATE = ("torch._dynamo",)


class Played:
    """Warm processes that do as the test says, and the host that believes in them."""

    def __init__(self) -> None:
        self.launched: list[tuple[str, ...]] = []
        self.control: list[socket.socket] = []
        self.gates: list[socket.socket] = []
        self.news: list[msgspec.Struct] = []
        self.readers: dict[int, Callable[[], None]] = {}
        self.host = WarmHost(self._start, ("python", "-u", "train.py"), {}, os.getpid(), self.news.append, self._waits)
        self.waiting: list[tuple[int, int]] = []
        self.host.launch(TORCH)
        self.host.attach(self._watch)

    def _start(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        self.launched.append(tuple(next(value for value in env.values() if "torch" in value).split(",")))
        self.control.append(socket.socket(fileno=os.dup(keep[0])))
        return 1000 + len(self.launched)

    def _waits(self, slot: int, pid: int) -> None:
        self.waiting.append((slot, pid))

    def _watch(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        if call is None:
            self.readers.pop(sock.fileno(), None)
        else:
            sock.setblocking(False)
            self.readers[sock.fileno()] = call

    def says(self, message: msgspec.Struct) -> None:
        send(self.control[-1], message)
        self._read()

    def _read(self) -> None:
        for number in select.select(list(self.readers), [], [], 10.0)[0]:
            self.readers[number]()

    def is_told(self) -> msgspec.Struct:
        data, descriptors, _, _ = socket.recv_fds(self.control[-1], 1 << 20, 1)
        self.gates += [socket.socket(fileno=each) for each in descriptors]
        return msgspec.json.decode(data, type=ToWarm)  # type: ignore[no-any-return]

    def stands_by(self, slot: int, pid: int) -> None:
        self.host.stock(slot + 1)
        assert self.is_told() == MakeStandby(slot)
        send(self.gates[-1], StandbyReady(pid=pid))
        self._read()

    def close(self) -> None:
        self.host.close()
        for each in (*self.control, *self.gates):
            each.close()


@pytest.fixture
def played() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


def test_standby_workers_serve_until_those_with_more_modules_can_be_made(played: Played) -> None:
    played.says(Preloaded(modules=TORCH, took_s=1.0))
    played.stands_by(0, 77)
    played.host.preload(LATE)
    assert played.is_told() == Preload(LATE)
    waiting = played.host.ready(0)
    assert waiting is not None, "a failure during the import finds a worker that waits"
    assert waiting.pid == 77
    played.says(Preloaded(modules=LATE, took_s=1.0))
    assert played.host.ready(0) is None
    played.stands_by(0, 78)
    renewed = played.host.ready(0)
    assert renewed is not None
    assert renewed.pid == 78


def test_a_fork_that_a_busy_machine_holds_up_for_more_than_a_second_is_waited_for(played: Played) -> None:
    played.says(Preloaded(modules=TORCH, took_s=1.0))

    def fork() -> None:
        assert played.is_told() == MakeStandby(0)
        time.sleep(1.2)
        send(played.gates[-1], StandbyReady(pid=77))

    slow = threading.Thread(target=fork)
    slow.start()
    played.host.make_now([0])
    slow.join(60)
    made = played.host.ready(0)
    assert made is not None
    assert made.pid == 77


def test_modules_that_are_there_are_not_imported_again(played: Played) -> None:
    played.says(Preloaded(modules=TORCH, took_s=1.0))
    played.host.preload(TORCH)
    assert played.host.state == "ready"


def test_a_late_import_that_spoils_the_process_is_left_out_of_the_next_one(played: Played) -> None:
    played.says(Preloaded(modules=TORCH, took_s=1.0))
    played.host.preload(LATE)
    played.says(WarmStartRefused("a Python thread runs (mine)", LATE))
    assert played.news[-1].module == "torch._dynamo"  # type: ignore[attr-defined]
    assert len(played.launched) == 2
    assert played.host.state == "importing"
    played.says(Preloaded(modules=TORCH, took_s=1.0))
    assert played.host.state == "ready"


def test_a_package_that_spoils_the_process_is_left_out_as_a_whole(played: Played) -> None:
    played.says(WarmStartRefused("CUDA is initialised", ("deep", "deep.speed")))
    assert played.host.state == "refused", "it was none of those asked for"
