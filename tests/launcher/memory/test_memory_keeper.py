"""The agent's handle on the keeper: what it holds is told in time or not at all, and one that dies is replaced."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from jobs import wait_for
from keepers import LIMIT_S, save, worker

from robust_run.ckpt_io.memory.agent_protocol import KeeperSetup
from robust_run.ckpt_io.memory.client import MemoryClient
from robust_run.ckpt_io.seen import MemoryGeneration
from robust_run.launcher.agent.memory.attempts import attempt_of
from robust_run.launcher.agent.memory.keeper import MemoryKeeper
from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import ResumePoint


class Ground:
    """An agent without a loop: it reads while it waits for something."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder / "keeper")
        self.said: list[str] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        self.argv: tuple[str, ...] | None = None
        """Started in place of the keeper."""
        self.heard: dict[socket.socket, Callable[[], None]] = {}
        self.keeper = MemoryKeeper(
            self.start,
            {**os.environ, "ROBUST_TOKEN": "secret"},
            KeeperSetup(folder=self.folder, limit_bytes=64 << 20),
            self.said.append,
        )
        self.keeper.attach(self.listen)
        self.pool = ThreadPoolExecutor(1)

    def start(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        assert "ROBUST_TOKEN" not in env
        self.processes.append(subprocess.Popen(self.argv or argv, env=env, pass_fds=keep))
        return self.processes[-1].pid

    def listen(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        self.heard.pop(sock, None)
        if call is not None:
            self.heard[sock] = call

    def read(self) -> None:
        """Take in what has come."""
        for sock in select.select(list(self.heard), [], [], 0.01)[0] if self.heard else ():
            self.heard[sock]()

    def held(self, limit_s: float = LIMIT_S) -> tuple[MemoryGeneration, ...]:
        asked = self.pool.submit(lambda: self.keeper.held(limit_s).generations)
        while not asked.done():
            self.read()
        return asked.result()

    def end(self) -> None:
        self.keeper.end()
        for process in self.processes:
            process.kill()
            process.wait()
        self.pool.shutdown()


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    try:
        yield made
    finally:
        made.end()


def order(attempt: int, resume: ResumePoint | None = None, first_rank: int = 0) -> StartAttempt:
    placement = Placement(node="a", group_rank=0, first_rank=first_rank, nproc=1)
    return StartAttempt(
        attempt=attempt, address="127.0.0.1", port=1, placements=(placement,), world_size=1, nodes=1, resume=resume
    )


def connected(ground: Ground, attempt: int) -> MemoryClient:
    wait_for(lambda: (ground.read(), os.path.exists(f"{ground.folder}/ckpt.sock"))[1], "the keeper's socket")
    return worker(ground.folder, attempt=attempt)


def test_what_a_rank_has_saved_outlives_it_and_is_told(ground: Ground) -> None:
    assert ground.keeper.begin(order(0))
    client = connected(ground, 0)
    for step in (1, 2):
        assert save(client, step)
    client.close()
    assert [(each.step, each.ranks) for each in ground.held()] == [(2, (0,)), (1, (0,))]
    resume = ResumePoint(source="memory", step=1, uuid="m1", name="memory-0-1", address="rrck+memory://0/1")
    assert ground.keeper.begin(order(1, resume))
    assert [each.step for each in ground.held()] == [1], "step 2 belongs to a past that did not happen"
    assert len(ground.processes) == 1 and not ground.said


def test_one_that_stands_still_is_named_as_the_reason_why_memory_was_passed_over(ground: Ground) -> None:
    assert ground.keeper.begin(order(0))
    client = connected(ground, 0)
    assert save(client, 1)
    client.close()
    pid = ground.processes[-1].pid
    os.kill(pid, signal.SIGSTOP)
    assert ground.held(0.3) == ()
    os.kill(pid, signal.SIGCONT)
    assert ground.keeper.begin(order(1))
    (said,) = ground.said
    assert (
        said
        == f"the keeper of checkpoints in memory (pid {pid}) did not answer within 0.3 s: what it holds was passed over"
    )
    assert ground.keeper.begin(order(2)) and len(ground.said) == 1, "once"


def test_one_that_dies_is_said_once_and_replaced_with_the_next_attempt(ground: Ground) -> None:
    assert ground.keeper.begin(order(0))
    client = connected(ground, 0)
    assert save(client, 1)
    assert ground.held()
    client.close()
    os.kill(ground.processes[0].pid, signal.SIGKILL)
    wait_for(lambda: (ground.read(), ground.said)[1], "the end of the keeper")
    assert ground.held() == ()
    assert ground.said == [
        f"the keeper, process {ground.processes[0].pid}, has ended: the checkpoints it held in memory are lost; "
        "the next attempt gets another"
    ]
    assert ground.keeper.begin(order(1))
    client = connected(ground, 1)
    assert save(client, 1, attempt=1)
    client.close()
    assert len(ground.held()) == 1 and len(ground.said) == 1


def test_one_that_has_died_unseen_is_replaced_too(ground: Ground) -> None:
    ground.keeper.begin(order(0))
    ground.processes[0].kill()
    ground.processes[0].wait()
    assert ground.keeper.begin(order(1))
    assert len(ground.processes) == 2 and len(ground.said) == 1


def test_one_that_says_nothing_is_not_waited_for(ground: Ground) -> None:
    ground.argv = (sys.executable, "-c", "import time; time.sleep(1000)")
    assert ground.keeper.begin(order(0))
    assert ground.held(0.05) == ()


def test_one_that_says_nonsense_is_hung_up_on(ground: Ground) -> None:
    def start(argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        program = f"import os, time; os.write({keep[0]}, b'{{not a frame'); time.sleep(1000)"
        ground.processes.append(subprocess.Popen((sys.executable, "-c", program), pass_fds=keep))
        return ground.processes[-1].pid

    keeper = MemoryKeeper(start, os.environ, KeeperSetup(folder=ground.folder), ground.said.append)
    keeper.attach(ground.listen)
    keeper.begin(order(0))
    wait_for(lambda: (ground.read(), ground.said)[1], "the keeper to be hung up on")
    assert "sent a message that cannot be read" in ground.said[0]


def test_one_that_cannot_be_started_is_said_and_the_attempt_starts_without(tmp_path: Path) -> None:
    said: list[str] = []

    def refuse(argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        raise OSError(11, "Resource temporarily unavailable")

    keeper = MemoryKeeper(refuse, os.environ, KeeperSetup(folder=str(tmp_path / "keeper")), said.append)
    assert not keeper.begin(order(0))
    assert keeper.held().generations == ()
    assert len(said) == 1 and "Resource temporarily unavailable" in said[0]


def test_it_ends_with_its_agent_and_leaves_nothing(ground: Ground) -> None:
    assert ground.keeper.begin(order(0))
    connected(ground, 0).close()
    ground.keeper.end()
    assert ground.processes[0].wait(LIMIT_S) == 0
    assert not os.path.exists(ground.folder) and not ground.said


def test_what_it_is_told_of_an_attempt() -> None:
    told = attempt_of(order(3, ResumePoint(source="storage", step=40), first_rank=5))
    assert (told.attempt, told.ranks, told.world_size, told.resumed_step) == (3, (5,), 1, 40)
    assert attempt_of(order(3, ResumePoint())).resumed_step is None
    assert attempt_of(order(0)).resumed_step is None
