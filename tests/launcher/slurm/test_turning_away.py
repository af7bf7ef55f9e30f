"""Nodes that look for a controller where there will be none are told so."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from robust_run.launcher.control.client import dial
from robust_run.launcher.control.errors import JoinRefusal
from robust_run.launcher.control.messages import Hello
from robust_run.launcher.model.job import NodeInfo
from robust_run.slurm.turning_away import turn_away


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody else is given, and that can be listened on."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


async def ask(port: int) -> str:
    hello = Hello(node=NodeInfo(id="a", name="rr2", nproc=1))
    for _ in range(600):
        try:
            (await dial("127.0.0.1", port, b"token", hello, timeout_s=30.0)).close()
        except ConnectionRefusedError:
            await asyncio.sleep(0.05)  # it does not listen yet
        except ConnectionResetError:
            continue  # it waits only so long for what a busy machine has to say: as agents do, ask again
        except JoinRefusal as refusal:
            assert refusal.final
            return str(refusal)
    raise AssertionError("nobody answered")


def test_all_other_nodes_hear_why_there_is_no_controller(port: int) -> None:
    told: list[int] = []
    text = "rr1, the first node, cannot start the job: no such script: train.py"
    thread = threading.Thread(target=lambda: told.append(turn_away([port], 2, text, quiet_s=60.0, longest_s=60.0)))
    thread.start()
    try:
        for _ in range(2):
            assert text in asyncio.run(ask(port))
    finally:
        thread.join(60)
    assert told == [2]


def test_where_nobody_comes_it_is_soon_over_and_taken_ports_are_passed_over() -> None:
    with socket.create_server(("", 0)) as taken:
        port = int(taken.getsockname()[1])
        assert turn_away([port], 3, "no", quiet_s=0.01) == 0
        assert turn_away([port, 0], 3, "no", quiet_s=0.01) == 0
