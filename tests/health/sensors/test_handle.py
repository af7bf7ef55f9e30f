"""The sensors as the agent uses them: from its loop, without ever waiting."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping

import msgspec
import pytest
from sensor_ground import LIMIT_S, StubDriver, Tree

from robust_run.errors import PlatformError
from robust_run.health.metrics.reporting import Reporter
from robust_run.health.metrics.reports import file_of
from robust_run.health.sensors import handle
from robust_run.health.sensors.handle import SensorsHandle, environment
from robust_run.health.sensors.process import SensorSetup, WatchedAttempt
from robust_run.health.sensors.types import Event
from robust_run.health.sensors.usage import GPU_METRICS


class Helpers:
    """Starts processes as the agent does, and buries them."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def __call__(self, argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        self.started.append(subprocess.Popen(argv, env=dict(env), pass_fds=keep, cwd="/"))
        return self.started[-1].pid


@pytest.fixture
def helpers() -> Iterator[Helpers]:
    found = Helpers()
    yield found
    for process in found.started:
        process.kill()
        process.wait(LIMIT_S)


def setup_of(tree: Tree) -> SensorSetup:
    tree.put("kmsg", "")
    return SensorSetup(proc=f"{tree}/proc", sys=f"{tree}/sys", kmsg=f"{tree}/kmsg", cgroups=f"{tree}/cgroup")


async def next_of(events: asyncio.Queue[Event], name: str) -> Event:
    async def find() -> Event:
        while True:
            event = await events.get()
            if event.name == name:
                return event

    return await asyncio.wait_for(find(), LIMIT_S)


def test_events_come_and_the_process_ends_with_the_handle(helpers: Helpers, tree: Tree) -> None:
    async def scenario() -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        sensors = SensorsHandle(asyncio.get_running_loop(), helpers, environment(), setup_of(tree), events.put_nowait)
        sensors.begin()
        assert (await next_of(events, "infiniband.absent")).kind == "note"
        sensors.end()

    asyncio.run(scenario())
    assert helpers.started[0].wait(LIMIT_S) == 0


def test_an_attempt_s_report_files_are_watched_once_it_is_told(helpers: Helpers, tree: Tree) -> None:
    Reporter(file_of(str(tree), 3)).write(9, {"loss": float("nan")})

    async def scenario() -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        sensors = SensorsHandle(asyncio.get_running_loop(), helpers, environment(), setup_of(tree), events.put_nowait)
        sensors.begin()
        await next_of(events, "infiniband.absent")
        sensors.attempt(WatchedAttempt(training=True, reports=(str(tree),)))
        event = await next_of(events, "training.nan")
        assert (event.subject, event.detail) == ("rank 3", "loss is nan at step 9")
        sensors.end()

    asyncio.run(scenario())


def test_a_process_that_dies_is_told_and_started_again(
    helpers: Helpers, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "AGAIN_AFTER_S", 0.01)

    async def scenario() -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        sensors = SensorsHandle(asyncio.get_running_loop(), helpers, environment(), setup_of(tree), events.put_nowait)
        sensors.begin()
        for start in range(handle.MOST_STARTS):
            if start:
                assert (await next_of(events, "sensors.ended")).kind == "clear", "it works again"
            await next_of(events, "infiniband.absent")
            helpers.started[start].kill()
            ended = await next_of(events, "sensors.ended")
        assert f"ended {handle.MOST_STARTS} times" in ended.detail
        sensors.end()

    asyncio.run(scenario())
    assert len(helpers.started) == handle.MOST_STARTS


def test_a_process_that_stands_still_is_killed_and_told(helpers: Helpers, tree: Tree) -> None:
    async def scenario() -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        loop, tell = asyncio.get_running_loop(), events.put_nowait
        sensors = SensorsHandle(loop, helpers, environment(), setup_of(tree), tell, silent_s=5.0)
        sensors.begin()
        await next_of(events, "infiniband.absent")
        helpers.started[0].send_signal(signal.SIGSTOP)
        assert "said nothing for" in (await next_of(events, "sensors.ended")).detail
        sensors.end()

    asyncio.run(scenario())
    assert helpers.started[0].wait(LIMIT_S) == -signal.SIGKILL


def test_a_process_that_cannot_be_started_is_told_and_the_job_goes_on(tree: Tree) -> None:
    def refuse(argv: tuple[str, ...], env: Mapping[str, str], keep: tuple[int, ...]) -> int:
        raise PlatformError("no more processes")

    async def scenario() -> None:
        events: asyncio.Queue[Event] = asyncio.Queue()
        sensors = SensorsHandle(asyncio.get_running_loop(), refuse, {}, setup_of(tree), events.put_nowait)
        sensors.begin()
        assert "no more processes" in (await next_of(events, "sensors.ended")).detail
        sensors.attempt(WatchedAttempt(training=True))
        sensors.end()

    asyncio.run(scenario())


def test_the_job_s_secret_does_not_reach_the_sensors() -> None:
    assert environment({"ROBUST_TOKEN": "x", "PATH": "/bin"}) == {"PATH": "/bin"}
    assert "PATH" in environment(os.environ)


def test_how_full_and_busy_the_gpus_are_reaches_the_agent(helpers: Helpers, tree: Tree, driver: StubDriver) -> None:
    """Asked before the first reading, the agent knows nothing of them, and it does not wait."""
    driver.set(gib_0=40, gib_1=72, percent_0=100, percent_1=50)

    async def scenario() -> dict[str, float]:
        setup = msgspec.structs.replace(setup_of(tree), nvml_library=driver.library)
        sensors = SensorsHandle(asyncio.get_running_loop(), helpers, environment(), setup, lambda _: None)
        sensors.begin()
        assert sensors.measured() == {}

        async def known() -> dict[str, float]:
            while not set(GPU_METRICS) <= set(use := sensors.measured()):
                await asyncio.sleep(0.02)
            return {name: use[name] for name in GPU_METRICS}

        use = await asyncio.wait_for(known(), LIMIT_S)
        sensors.end()
        return use

    assert asyncio.run(scenario()) == {
        "gpu_memory_percent": 90.0,
        "gpu_busy_percent": 75.0,
        "gpu_celsius": 61.0,
    }
