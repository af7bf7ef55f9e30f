"""An agent's rounds carry what NCCL completed, and what it sees on suspicion carries what NCCL's RAS says."""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tracer.ras.answers import answer, communicator, rank

from robust_run.clock import SystemClock
from robust_run.harmless import Harmless
from robust_run.launcher.agent.watching.rank_watch import RankWatch
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.model.actions import Collect
from robust_run.launcher.model.job import JobSpec, OutputStreams, Paces, Sights, Std
from robust_run.tracer.files import phases, ring
from robust_run.tracer.nccl.types import CommRate
from robust_run.tracer.pace.types import TimedPace
from robust_run.tracer.plugin import layout

STUCK_S = 60.0


def spec(round_s: float) -> JobSpec:
    return JobSpec(
        argv=("python", "train.py"),
        script="train.py",
        is_python=True,
        nproc=2,
        run_id="run",
        rdzv_id="run",
        log_dir="/tmp",
        streams=OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,)),
        slow_round_s=round_s,
    )


def watch_over(folder: Path, deliver: Callable[[Any], None], *, round_s: float = 0.0, ras: str = "") -> RankWatch:
    """A watch over two ranks, both of which are this process."""
    places: Any = SimpleNamespace(
        steps_file=lambda attempt, rank: str(folder / f"{attempt}-{rank}"), reports=lambda attempt: str(folder / "none")
    )
    for number in range(2):
        ring.create(str(folder / f"0-{number}.ring"), number, 2)

    def said(text: str) -> None:
        raise AssertionError(text)

    workers: Any = [worker(number) for number in range(2)]
    harmless = Harmless("looking", said)
    return RankWatch(0, "a", workers, places, SystemClock(), spec(round_s), lambda _: None, deliver, harmless, 2, ras)


def worker(number: int) -> Worker:
    fields: Any = {"rank": number, "pid": os.getpid(), "exit_code": None, "signalled_at_s": None, "exited_at_s": 0.0}
    return SimpleNamespace(**fields)  # type: ignore[return-value]


def completed(path: Path, operations: int) -> None:
    """Write what the plugin would have after so many operations of 1000 bytes."""
    layout.create(str(path))
    cells = {layout.PID_CELL: 7, layout.API_CELL: 6, layout.COMMS_CELL: 1, layout.OPS_CELL: operations}
    with path.open("r+b") as file:
        for number, value in cells.items():
            file.seek(number * 8)
            file.write(layout.cell(value))
        file.seek(layout.COMMS_AT + layout.COMM_BYTES)
        file.write(struct.pack(layout.COMM_FORMAT, 1, 5, 2, 1, 1, 1, 0, 0, b"dp_1"))
        for number in range(operations):
            row: list[Any] = [number + 1, 1, layout.COLLECTIVE_KIND, 0, 1, 0, 9, 9, 10**9, 2 * 10**9, 1000, 900, 1, 1]
            file.seek(layout.OPS_AT + number * layout.OP_BYTES)
            file.write(struct.pack(layout.OP_FORMAT, *row, 0, 0, b"AllReduce", b"ncclFloat32"))


def timed(path: Path, state: int) -> None:
    """Write what a worker would have on a GPU after 30 steps: 20 ms of its own each, and 5 ms of waiting."""
    phases.create(str(path))
    with path.open("r+b") as file:
        cells = {phases.PID_CELL: 7, phases.STATE_CELL: state, phases.NEWEST_CELL: 30}
        for step in range(1, 31):
            at = phases.RECORDS_AT_CELL + phases.RECORD_CELLS * step
            cells |= {at: step * 10**8, at + 1: 2 * 10**7, at + 4: 5 * 10**6, at + 7: step + 1}
        for number, value in cells.items():
            file.seek(number * 8)
            file.write(layout.cell(value))


def test_rounds_carry_what_gpus_say_of_steps_unless_they_have_given_up(tmp_path: Path) -> None:
    async def first() -> Paces:
        delivered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        watch = watch_over(tmp_path, lambda said: None if delivered.done() else delivered.set_result(said), round_s=0.6)
        timed(tmp_path / "0-0.phases", phases.ARMED)
        timed(tmp_path / "0-1.phases", phases.GIVEN_UP)
        watch.start(asyncio.get_running_loop())
        try:
            return await asyncio.wait_for(delivered, STUCK_S)  # type: ignore[no-any-return]
        finally:
            watch.stop()

    said = asyncio.run(first()).pace.timed
    assert said == (TimedPace(0, "", 1, 1, (20.0,) * 30, (25.0,) * 30),)
    assert len(phases.read(str(tmp_path / "0-1.phases"))) == 30  # pictures may have them


def test_rounds_carry_what_was_completed(tmp_path: Path) -> None:
    async def first() -> Paces:
        delivered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        watch = watch_over(
            tmp_path, lambda seen: None if delivered.done() else delivered.set_result(seen), round_s=0.05
        )
        completed(tmp_path / "0-0.nccl", 3)
        completed(tmp_path / "0-1.nccl", 2)
        watch.start(asyncio.get_running_loop())
        try:
            return await asyncio.wait_for(delivered, STUCK_S)
        finally:
            watch.stop()

    assert asyncio.run(first()).nccl == (CommRate("dp_1", 5, 5000, 4500, 5.0),)


async def seen_by(folder: Path, ras: str, samples: int) -> Sights:
    delivered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    watch = watch_over(folder, delivered.set_result, ras=ras)
    watch.start(asyncio.get_running_loop())
    try:
        watch.collect(Collect(attempt=0, number=1, samples=samples, ops=4))
        return await asyncio.wait_for(delivered, STUCK_S)
    finally:
        watch.stop()


def served(call: Callable[[str], Awaitable[Sights]]) -> Sights:
    """Call with the address of a RAS that answers."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readline()
        writer.write(b"SERVER PROTOCOL 2\nOK\nOK\n")
        if await reader.readline() == b"STATUS\n":
            writer.write(answer(communicator(rank(0), rank(1, {"AllReduce": 99}))))
        writer.close()

    async def run() -> Sights:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            return await call(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    return asyncio.run(run())


def test_without_samples_only_what_rings_hold_is_told(tmp_path: Path) -> None:
    seen = asyncio.run(seen_by(tmp_path, "127.0.0.1:1", 0))
    assert [sight.rank for sight in seen.sights] == [0, 1]
    assert not any(sight.processes for sight in seen.sights), "no process was looked at"


def test_on_suspicion_ras_is_heard(tmp_path: Path) -> None:
    seen = served(lambda address: seen_by(tmp_path, address, 3))
    first, second = seen.sights
    assert first.ras is not None
    assert [row.rank for row in first.ras.communicators[0].odd] == [1]
    assert second.ras is None


def test_who_only_looks_disturbs_nobody(tmp_path: Path) -> None:
    seen = served(lambda address: seen_by(tmp_path, address, 1))
    assert [sight.ras for sight in seen.sights] == [None, None]
