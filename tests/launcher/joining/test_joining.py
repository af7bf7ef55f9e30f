"""How a node comes to the controller on record: past another program at its address, past its own that was not elected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from controllers import TOKEN, Port, refusing, serving

from robust_run.clock import SystemClock
from robust_run.launcher.control.errors import NotController
from robust_run.launcher.control.meeting import Host
from robust_run.launcher.controller.leadership.job_runs import RunEntry, RunOnRecord
from robust_run.launcher.controller.leadership.types import LeaderRecord, RunStanding
from robust_run.launcher.model.job import JobSpec, ManyNodes, OutputStreams
from robust_run.launcher.start.many.fence import Cell, Lease
from robust_run.launcher.start.many.joining import Joining

PATIENCE_S = 60.0
Result = TypeVar("Result")


class Record:
    """What is on record of the job's only run: who leads it. It shows a sign of life whenever it is looked at."""

    def __init__(self, *leaders: str) -> None:
        self.leaders, self.looks = list(leaders), 0

    async def newest(self) -> RunOnRecord:
        self.looks += 1
        where = self.leaders[0] if len(self.leaders) == 1 else self.leaders.pop(0)
        leader = LeaderRecord(term=1, address=where, host="n0", run_id="x")
        return RunOnRecord(run_id="x", number=1, standing=RunStanding(run_id="x", leader=leader, sign=str(self.looks)))

    async def enter(self, entry: RunEntry, after: int) -> None:
        raise AssertionError("nothing is founded here")

    async def close(self) -> None:
        pass


class Supervisor:
    """Of the controller of this node, which was started or not."""

    def __init__(self, address: str = "") -> None:
        self.address, self.is_running = address, bool(address)

    def start(self, *_: Any) -> None:
        raise AssertionError("no controller is to be started here")


def joining(folder: Path, record: Record, own: str = "") -> Joining:
    """Return the way into a job for a node that has started a controller at `own`, or none."""
    many = ManyNodes(
        fewest=2, most=2, host="127.0.0.1", port=29400, job="job", controller_standby=1, join_timeout_s=PATIENCE_S
    )
    spec = JobSpec(
        argv=("python", "train.py"),
        script="train.py",
        is_python=True,
        nproc=1,
        run_id="x",
        rdzv_id="job",
        log_dir=str(folder),
        streams=OutputStreams(redirects=(), tee=(), shown=()),
        many=many,
    )
    made = Joining(
        spec=spec,
        many=many,
        token=TOKEN.decode(),
        guard=0,
        resumed=None,
        clock=SystemClock(),
        lease=Lease(Cell()),
        supervisor=Supervisor(own),  # type: ignore[arg-type]
        node_id="0" * 16,
        marks="",
        say=lambda _: None,
    )
    assert made._lookout is not None
    made._lookout._host = "n0"  # where addresses of loopback are true
    made._lookout._runs = record
    return made


def run(main: Awaitable[Result]) -> Result:
    async def bounded() -> Result:
        return await asyncio.wait_for(main, PATIENCE_S)

    return asyncio.run(bounded())


async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Another program."""
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    await writer.drain()
    writer.close()


async def joined(way: Joining, leader: Port) -> None:
    connection = await way.join()
    assert connection.where == f"127.0.0.1:{leader.number}"
    connection.close()
    if way.candidate is not None:
        way.candidate.close()


def test_another_program_at_the_address_on_record_is_doubted_and_the_next_leader_on_record_joined(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        other = await asyncio.start_server(stranger, "127.0.0.1", 0)
        there = other.sockets[0].getsockname()[1]
        async with other, serving() as leader:
            record = Record(f"127.0.0.1:{there}", f"127.0.0.1:{leader.number}")
            await joined(joining(tmp_path, record), leader)

    run(main())


def test_a_program_that_goes_on_answering_at_the_address_of_a_leader_that_lives_is_an_error_in_words(
    tmp_path: Path,
) -> None:
    """The record shows signs of life after the first doubt, so this is where the leader says it is."""

    async def main() -> None:
        other = await asyncio.start_server(stranger, "127.0.0.1", 0)
        async with other:
            way = joining(tmp_path, Record(f"127.0.0.1:{other.sockets[0].getsockname()[1]}"))
            with pytest.raises(NotController):
                await way.join()
            assert way.candidate is not None
            way.candidate.close()

    run(main())


def test_a_node_that_was_about_to_go_on_with_a_run_follows_who_was_elected_before_it(tmp_path: Path) -> None:
    """Its own controller is a candidate, and lets nobody in for as long as another leads."""

    async def main() -> None:
        with refusing() as own:
            async with serving() as leader:
                way = joining(tmp_path, Record(f"127.0.0.1:{leader.number}"), own=f"127.0.0.1:{own}")
                way._goes_on, way._own_place = (
                    "x",
                    Host(address="127.0.0.1", addresses=("127.0.0.1",), port=own, socket=None),
                )  # type: ignore[arg-type]
                await joined(way, leader)

    run(main())


def test_it_goes_to_its_own_controller_where_that_is_the_one_on_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving() as own:
            way = joining(tmp_path, Record(f"127.0.0.1:{own.number}"), own=f"127.0.0.1:{own.number}")
            way._goes_on = "x"
            way._own_place = Host(address="127.0.0.1", addresses=("127.0.0.1",), port=own.number, socket=None)  # type: ignore[arg-type]
            await joined(way, own)
            assert way.is_host

    run(main())
