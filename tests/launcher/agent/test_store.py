"""The store's process as its agent sees it: whose loss is told, and how its end is put into words."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from robust_run.launcher.agent.workers import workers
from robust_run.launcher.agent.workers.store import DIED, StoreHost, listen, with_last_line
from robust_run.signals import describe_exit


class Place:
    """A node that starts a process which never speaks, as the store's."""

    def __init__(self) -> None:
        self.lost: list[tuple[int, str]] = []
        self.processes: list[socket.socket] = []
        self.host = StoreHost(self._start, "python", {}, lambda attempt, detail: self.lost.append((attempt, detail)))

    def _start(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        self.processes.append(socket.socket(fileno=os.dup(keep[0])))
        return 4_000_000

    def serve(self, attempt: int) -> None:
        self.host.serve(attempt, listen("127.0.0.1", None))

    def kill(self) -> None:
        self.processes[-1].shutdown(socket.SHUT_RDWR)
        self.host.read()


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.host.close()
    for process in place.processes:
        process.close()


def test_the_loss_of_a_store_in_use_is_told_once(place: Place) -> None:
    place.serve(2)
    place.kill()
    place.host.read()
    assert place.lost == [(2, DIED)]


def test_the_loss_of_a_store_that_nobody_uses_is_not_told(place: Place) -> None:
    place.host.prepare()
    place.kill()
    assert place.lost == []
    place.serve(0)
    assert len(place.processes) == 2


def test_the_store_of_an_earlier_attempt_is_nobodys_concern(place: Place) -> None:
    place.serve(0)
    place.host.retire(0)  # it is still the newest
    place.host.retire(1)
    place.kill()
    assert place.lost == []


def test_a_process_that_hung_up_is_waited_for_so_that_its_end_is_known() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    worker = workers.Worker(process.pid, process.poll, -1, "store")
    try:
        assert not worker.ends_within(0.0, 0.0)
        process.kill()
        assert worker.ends_within(60.0, 1.0)
    finally:
        worker.close()
        process.kill()
        process.wait()
    assert describe_exit(worker.exit_code) == f"was killed by SIGKILL (signal {signal.SIGKILL:d})"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "it died"),
        ("[W1121 10:00:00 socket.cpp:207] The hostname of the client socket cannot be retrieved\n", "it died"),
        ("MemoryError\n[W1121 10:00:00 socket.cpp:207] x\nx.py:1: UserWarning: y\n", "it died: MemoryError"),
    ],
)
def test_a_mere_warning_is_not_called_the_reason(tmp_path: Path, log: str, said: str) -> None:
    path = tmp_path / "store.log"
    path.write_text(log)
    assert with_last_line("it died", str(path)) == said


@pytest.mark.parametrize("for_others", [False, True])
def test_the_port_of_a_store_that_rank_0_hosts_is_kept_for_it(place: Place, *, for_others: bool) -> None:
    """In an image rank 0 imports torch for seconds before it listens."""
    port = place.host.open("127.0.0.1", None, for_others=for_others, hosts=False).port
    place.host.serve_opened(0, hosts=False)
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", port))
    with socket.socket() as early:
        assert early.connect_ex(("127.0.0.1", port)), "nobody listens yet"
    with socket.socket() as rank_0, socket.socket() as rank_1:
        rank_0.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rank_0.bind(("", port))
        rank_0.listen()
        rank_1.connect(("127.0.0.1", port))
    place.host.give_up()
    assert not place.processes
