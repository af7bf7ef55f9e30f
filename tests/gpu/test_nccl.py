"""The plugin and the rules under a real NCCL: two ranks on one GPU that take each other for other machines (see `ground`).

Best effort: NVIDIA does not support this, so where two ranks do not train at all here, all is skipped with the reason.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gpu import machine
from gpu.ground import Ranks, TooLongError, until

from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.types import NcclFault, NcclSight
from robust_run.tracer.plugin import build
from robust_run.tracer.plugin.metering import Metering
from robust_run.tracer.sight.ras import ask
from robust_run.tracer.sight.ras_port import RasPort

REASON = machine.why_not()
if REASON:
    pytest.skip(REASON, allow_module_level=True)

pytestmark = pytest.mark.timeout(600)
#: Of a look for a fault.
LOOKS = 20


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = build.ensure(str(tmp_path_factory.mktemp("plugin") / "cache"))
    if not found.path:
        pytest.skip(found.reason)
    return found.path


@pytest.fixture(scope="module", autouse=True)
def ground_holds(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two ranks on one GPU train here, without the plugin."""
    try:
        with Ranks(tmp_path_factory.mktemp("alone"), "nccl", steps=3) as ranks:
            ranks.until_done()
            ranks.until_steps(3, 1.0)
    except TooLongError as error:
        pytest.skip(f"two ranks of NCCL do not train on one GPU here: {error}")


@pytest.fixture
def start(tmp_path: Path, plugin: str) -> Iterator[Callable[..., Ranks]]:
    running: list[Ranks] = []

    def begin(*fault: str, **options: object) -> Ranks:
        running.append(Ranks(tmp_path / str(len(running)), "nccl", **{"fault": fault, "plugin": plugin} | options))  # type: ignore[arg-type]
        return running[-1]

    yield begin
    for ranks in running:
        ranks.end()


def certain(sights: list[NcclSight]) -> list[NcclFault]:
    return [fault for fault in diagnose(sights).faults if fault.confidence != "low"]


def test_what_nccl_does_is_seen(start: Callable[..., Ranks]) -> None:
    ranks = start()
    ranks.until_steps(20)
    trace = ranks.trace(0)
    assert trace is not None
    assert trace.glance.pid == ranks.pid(0)
    assert trace.glance.api in (3, 4, 5, 6)
    assert (trace.glance.dropped, trace.glance.unknown, trace.glance.stale) == (0, 0, 0)
    assert {(comm.rank, comm.ranks) for comm in trace.communicators} <= {(0, 2), (0, None)}
    assert {op.func for op in trace.ops if op.kind == "collective"} >= {"AllReduce"}
    assert {flow.direction for flow in trace.flows} == {"send", "recv"}
    assert any(flow.done > 0 for flow in trace.flows)
    for flow in trace.flows:
        assert flow.posted >= flow.gpu_ready >= flow.transmitted >= flow.done


def test_weights_are_the_same_bit_for_bit(start: Callable[..., Ranks]) -> None:
    traced = set(start(steps=10).until_done())
    assert traced == set(start(steps=10, plugin="").until_done())
    assert len(traced) == 1
    assert traced != {""}


@pytest.mark.parametrize("fault", ["stopped", "late"])
def test_a_rank_that_does_not_come_is_named(start: Callable[..., Ranks], fault: str) -> None:
    ranks = start("late", "1", "8") if fault == "late" else start()
    ranks.until_steps(7)
    if fault == "stopped":
        ranks.stop(1)
    ranks.until_stuck()
    faults = certain(ranks.sights())
    assert faults
    assert faults[0].ranks == (1,), faults[0].sentence


def test_a_slow_rank_is_a_straggler(start: Callable[..., Ranks]) -> None:
    ranks = start("slow", "1", "4", environment={"SLOW_S": "1.3"})
    ranks.until_steps(20)
    found: list[NcclFault] = []
    for _ in range(LOOKS):
        found = [fault for fault in diagnose(ranks.sights()).faults if fault.kind == "straggler"]
        if found:
            break
    assert [fault.ranks for fault in found] == [(1,)]


def test_a_starved_proxy_accuses_nobody_else(start: Callable[..., Ranks]) -> None:
    ranks = start()
    ranks.until_steps(10)
    burning = ranks.starve(1, min(os.sched_getaffinity(0)))
    try:
        ranks.until_steps(ranks.steps()[0] + 3)
        faults = certain(ranks.sights())
    finally:
        for each in burning:
            each.kill()
            each.wait(60)
    assert all(fault.ranks != (0,) for fault in faults), [fault.sentence for fault in faults]


def test_a_healthy_training_is_accused_of_nothing(start: Callable[..., Ranks]) -> None:
    ranks = start()
    ranks.until_steps(10)
    for _ in range(5):
        assert [fault.sentence for fault in certain(ranks.sights()) if fault.kind != "straggler"] == []


def test_bytes_of_completed_operations_are_counted(start: Callable[..., Ranks]) -> None:
    ranks, metering = start(), Metering()
    ranks.until_steps(10)
    files = {rank: ranks.trace_path(rank) for rank in range(ranks.count)}
    metering.look(files, time.monotonic())
    ranks.until_steps(ranks.steps()[0] + 10)
    rates = metering.look(files, time.monotonic())
    assert sum(rate.operations for rate in rates) >= 10
    assert sum(rate.sent_bytes for rate in rates) > 0 or machine.nccl_version() < (2, 27)


def test_ras_answers_on_a_port_of_the_job(start: Callable[..., Ranks]) -> None:
    port = RasPort()
    try:
        ranks = start(environment=port.variables({}))
        ranks.until_steps(5)
        until(lambda: asyncio.run(ask(port.address)) is not None, lambda: "RAS says nothing", 30.0)
        report = asyncio.run(ask(port.address))
        assert report is not None
        assert report.form == ("json" if machine.nccl_version() >= (2, 28, 7) else "text")
        ranks.stop(1)
        ranks.until_stuck()
        report = asyncio.run(ask(port.address))
        assert report is None or report.communicators or report.timeouts
    finally:
        port.close()
