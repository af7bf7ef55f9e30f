"""A leader on record that takes connections and lets nobody in: a starved one is waited for, another program is not believed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from robust_run.launcher.controller.leadership.job_runs import RunEntry, RunOnRecord
from robust_run.launcher.controller.leadership.types import LeaderRecord, RunStanding
from robust_run.launcher.model.job import JobSpec, ManyNodes, OutputStreams
from robust_run.launcher.start.many.lookout import LOOK_SELDOM_S, Lookout

MANY = ManyNodes(fewest=2, most=2, host="n0", port=29400, job="job", controller_standby=1)
PATIENCE_S = 3.0
"""Three turns of a leader's shortest lease."""


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s


class Record:
    """The register: one run, whose leader shows as many signs of life as the test says."""

    def __init__(self, address: str) -> None:
        self.beats, self.address = 0, address

    async def newest(self) -> RunOnRecord:
        leader = LeaderRecord(term=1, address=self.address, host="n0", run_id="x")
        return RunOnRecord(run_id="x", number=1, standing=RunStanding(run_id="x", leader=leader, sign=str(self.beats)))

    async def enter(self, entry: RunEntry, after: int) -> None:
        raise AssertionError("nothing is founded here")

    async def close(self) -> None:
        pass


class Ground:
    def __init__(self, folder: Path, address: str) -> None:
        spec = JobSpec(
            argv=("python", "train.py"),
            script="train.py",
            is_python=True,
            nproc=1,
            run_id="x",
            rdzv_id="job",
            log_dir=str(folder),
            streams=OutputStreams(redirects=(), tee=(), shown=()),
            many=MANY,
        )
        self.clock, self.record, self.address = Clock(), Record(address), address
        self.lookout = Lookout(spec, MANY, "", "n0", self.clock, lambda _: None)
        self.lookout._runs = self.record

    def acts(self, after_s: float = LOOK_SELDOM_S, *, beats: bool = True) -> str:
        """Return what the node does after some seconds, in which the leader on record shows life or not."""
        self.clock.now_s += after_s
        self.record.beats += beats
        return asyncio.run(self.lookout.look()).act


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Ground(tmp_path, f"127.0.0.1:{listening.getsockname()[1]}")


def test_a_starved_leader_is_waited_for_and_joined_when_it_has_recovered(ground: Ground) -> None:
    assert ground.acts() == "join"
    assert ground.lookout.doubt(ground.address), "its dial took too long"
    assert ground.acts(0.1) == "wait"
    assert ground.acts(1.0) == "wait"
    assert ground.acts(PATIENCE_S) == "join"


def test_of_two_refusals_with_a_sign_of_life_between_them_the_second_is_the_leader_s(ground: Ground) -> None:
    """This node has another token: that is said at once then, and not waited for."""
    assert ground.acts() == "join"
    assert ground.lookout.doubt(ground.address)
    assert ground.acts(PATIENCE_S + 1.0) == "join"
    assert not ground.lookout.doubt(ground.address)


def test_another_program_at_the_address_of_a_dead_leader_keeps_nobody_from_going_on(ground: Ground) -> None:
    assert ground.acts(beats=False) == "join"
    assert ground.lookout.doubt(ground.address)
    assert ground.acts(1.0, beats=False) == "wait"
    assert ground.acts(PATIENCE_S, beats=False) == "go_on"
    assert ground.acts(100.0, beats=False) == "go_on"
