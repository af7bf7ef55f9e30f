"""The sensors' process, as the agent uses it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_ground import LIMIT_S, Tree

from robust_run.health.sensors.process import (
    Now,
    SensorSetup,
    WatchedAttempt,
    command,
    first_line,
    parse,
    parse_measured,
    world_of,
)
from robust_run.health.sensors.settings import KernelLogSettings, SensorSettings
from robust_run.health.sensors.types import Event
from robust_run.health.sensors.usage import Measured

Start = Callable[[SensorSetup], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def begin(setup: SensorSetup) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path)
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(first_line(setup))
        process.stdin.flush()
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def lines_until(process: subprocess.Popen[bytes], name: str) -> list[Event]:
    """Return the events up to the first of that name; the process is killed if it takes too long."""
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        events: list[Event] = []
        assert process.stdout is not None
        for line in process.stdout:
            if line == b"\n" or parse_measured(line) is not None:  # a sign of life, or numbers
                continue
            event = parse(line)
            assert event is not None, line
            events.append(event)
            if event.name == name:
                return events
    finally:
        timer.cancel()
    raise AssertionError(f"it ended without {name}: {events}")


def tree_setup(tree: Tree) -> SensorSetup:
    tree.put("kmsg", "")
    tree.put("sys/class/net/eth0/operstate", "up\n")
    tree.put("sys/class/net/eth0/device/vendor", "x")
    settings = SensorSettings(kernel_log=KernelLogSettings(wait_s=0.2))
    return SensorSetup(
        settings=settings,
        proc=f"{tree}/proc",
        sys=f"{tree}/sys",
        kmsg=f"{tree}/kmsg",
        cgroups=f"{tree}/cgroup",
        interfaces=("eth0",),  # by its name it is watched even if it is down when the sensors look first
    )


def break_again_and_again(tree: Tree, stop: threading.Event) -> None:
    """A link that flaps and a kernel that panics until the test has seen it: when the sensors look first is theirs to choose."""
    while not stop.wait(0.7):
        down = (tree.path / "sys/class/net/eth0/operstate").read_text() == "up\n"
        tree.put("sys/class/net/eth0/operstate", "down\n" if down else "up\n")
        with open(tree.path / "kmsg", "a") as log:
            log.write("2,1,1,-;Kernel panic - not syncing: test\n")


def test_it_says_what_is_absent_and_then_what_happens(start: Start, tree: Tree) -> None:
    process = start(tree_setup(tree))
    lines_until(process, "infiniband.absent")
    stop = threading.Event()
    thread = threading.Thread(target=break_again_and_again, args=(tree, stop))
    thread.start()
    try:
        seen: set[str] = set()
        while not {"kernel.panic", "network.link_down"} <= seen:
            seen |= {event.name for event in lines_until(process, "network.link_down")}
    finally:
        stop.set()
        thread.join()


def test_it_ends_when_its_input_ends(start: Start, tree: Tree) -> None:
    process = start(tree_setup(tree))
    lines_until(process, "infiniband.absent")
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None
    assert process.wait(LIMIT_S) == 0


def test_it_ends_when_nobody_reads_it_any_more(start: Start, tree: Tree) -> None:
    process = start(tree_setup(tree))
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    stop = threading.Event()
    thread = threading.Thread(target=break_again_and_again, args=(tree, stop))
    thread.start()
    try:
        assert process.wait(LIMIT_S) == 0
    finally:
        stop.set()
        thread.join()


def test_a_setup_that_is_none_is_refused_in_one_line() -> None:
    done = subprocess.run(command(), input=b"[1]\n", capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert b"the sensors cannot run" in done.stderr


def test_it_dies_with_the_process_that_started_it() -> None:
    """Somebody else holds its input open, so that the end of that ends nothing."""
    code = """if True:
        import os, subprocess, sys
        from robust_run.health.sensors.process import SensorSetup, command, first_line
        process = subprocess.Popen(command(), stdin=subprocess.PIPE)
        os.set_inheritable(process.stdin.fileno(), True)
        holder = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, close_fds=False)
        print(process.pid, holder.pid, flush=True)
        process.stdin.write(first_line(SensorSetup())); process.stdin.flush()
        os.kill(os.getpid(), 9) if sys.stdin.readline() else None
        """
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    lines = iter(parent.stdout.readline, b"")
    sensors, holder = map(int, next(line for line in lines if parse(line) is None).split())
    pidfd = os.pidfd_open(sensors)
    try:
        assert any(map(parse, lines))  # it is at work, so it has asked the kernel; a sign of life may come first
        parent.communicate(b"die\n", timeout=LIMIT_S)
        assert select.select([pidfd], [], [], LIMIT_S)[0], "it outlived the process that started it"
    finally:
        os.close(pidfd)
        os.kill(holder, 9)


@given(st.binary())
def test_any_line_is_an_event_or_nothing(line: bytes) -> None:
    assert parse(line) is None or isinstance(parse(line), Event)


def test_what_is_measured_is_no_event_and_no_event_is_a_measure() -> None:
    measured = Measured(values={"gpu_celsius": 61.0}, fresh_s=15.0)
    line = msgspec.json.encode(measured)
    assert parse(line) is None
    assert parse_measured(line) == measured
    event = Event(name="gpu.hot", kind="alert", subject="", detail="", at_s=1.0)
    for other in (msgspec.json.encode(event), b"", b'{"type":"measured","values":"x"}', b'{"type":"measured"'):
        assert parse_measured(other) is None


class SetClock:
    """A node's clocks, of which people set one."""

    def __init__(self) -> None:
        self.now_s, self.ahead_s = 500.0, 1e9

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s + self.ahead_s


def test_after_the_wall_clock_was_set_back_what_event_files_say_is_still_of_the_attempt_that_runs() -> None:
    clock, now = SetClock(), Now()
    world = world_of(SensorSetup(), now, clock)
    assert world.began_unix_s() == 0.0, "nothing runs"
    now.attempt = WatchedAttempt(training=True, began_s=400.0)
    assert world.began_unix_s() == 1e9 + 400.0
    clock.now_s, clock.ahead_s = 600.0, 1e9 - 3600.0
    assert world.began_unix_s() < clock.unix_s() - 150.0
