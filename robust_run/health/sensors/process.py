"""The sensors' process: one for each node, started by the agent, so that nothing a sensor does can hold the agent up.

It reads a line of JSON (`SensorSetup`), then a line of JSON (`WatchedAttempt`) whenever one begins or ends; the end of its
input ends the process. It writes one event a line, as JSON, or numbers that a sensor's reading gives (`Measured`), and an empty
line every few seconds: silence means that it stands still. Both go over one socket, or over standard input and output. It dies
with the process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.decoders import json_decoder
from robust_run.health.sensors.settings import SensorSettings
from robust_run.health.sensors.types import Event, SensorWorld
from robust_run.health.sensors.usage import Measured
from robust_run.own_process import boot

MOST_LINE_BYTES = 1 << 20
MOST_EVENT_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_BOOT = boot("robust_run.health.sensors.process", "main(*map(int, sys.argv[1:]))")


class SensorSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent tells the sensors: where to look, and how often."""

    settings: SensorSettings = SensorSettings()
    proc: str = "/proc"
    sys: str = "/sys"
    kmsg: str = "/dev/kmsg"
    cgroups: str = "/sys/fs/cgroup"
    nvml_library: str = ""
    pid: int = 0
    """Whose cgroups and mounts, and whose descendants are the job; 0: the process that started this one."""
    folders: tuple[str, ...] = ()
    visible_gpus: str | None = None
    """CUDA_VISIBLE_DEVICES of the job; None: it is not set."""
    image: str = ""
    """What is mounted for the job's processes, for people."""
    interfaces: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    event_folders: tuple[str, ...] = ()
    """Where to look for event files of TensorBoard and wandb."""


class WatchedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """What runs on the node now."""

    training: bool = False
    """Whether workers run, so that silence on the network is odd."""
    reports: tuple[str, ...] = ()
    """Folders of their report files."""
    began_s: float | None = None
    """When it began, by the node's monotonic clock; None: nothing did."""


def command(descriptor: int | None = None) -> tuple[str, ...]:
    """Return what starts the process, with the descriptor of its socket; None: standard input and output.

    No file of the folder it is started in can take the place of a module.
    """
    return (sys.executable, "-c", _BOOT, *(() if descriptor is None else (str(descriptor),)))


def first_line(setup: SensorSetup) -> bytes:
    """Return what is to be written to its standard input first."""
    return msgspec.json.encode(setup) + b"\n"


def attempt_line(attempt: WatchedAttempt) -> bytes:
    """Return what is to be written to its standard input when an attempt begins or ends."""
    return msgspec.json.encode(attempt) + b"\n"


def parse(line: bytes) -> Event | None:
    """Return the event in a line of its output, None for anything else. Never raises."""
    if len(line) > MOST_EVENT_BYTES:
        return None
    try:
        return json_decoder(Event).decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def parse_measured(line: bytes) -> Measured | None:
    """Return what a line of its output says was measured, None for anything else. Never raises."""
    if not line.startswith(b'{"type":"measured"') or len(line) > MOST_EVENT_BYTES:
        return None
    try:
        return json_decoder(Measured).decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


class Now:
    """The attempt that runs; the sensors' threads ask, one other thread tells."""

    def __init__(self) -> None:
        self.attempt = WatchedAttempt()


def world_of(setup: SensorSetup, now: Now, clock: Clock) -> SensorWorld:
    """Return where the sensors look."""
    return SensorWorld(
        proc=setup.proc,
        sys=setup.sys,
        kmsg=setup.kmsg,
        cgroups=setup.cgroups,
        nvml_library=setup.nvml_library,
        pid=setup.pid or os.getppid(),
        folders=setup.folders,
        python=(sys.prefix, sys.base_prefix),
        visible_gpus=setup.visible_gpus,
        image=setup.image,
        interfaces=setup.interfaces,
        stores=setup.stores,
        is_training=lambda: now.attempt.training,
        reports=lambda: now.attempt.reports,
        event_folders=lambda: setup.event_folders,
        began_unix_s=lambda: began_unix_s(now.attempt, clock),
    )


def began_unix_s(attempt: WatchedAttempt, clock: Clock) -> float:
    """Return when an attempt began by the wall clock as it goes now: what is written after that was set says times by it."""
    return 0.0 if attempt.began_s is None else clock.unix_s() - (clock.monotonic_s() - attempt.began_s)


def serve(source: BinaryIO, output: int) -> None:
    """Run the sensors until `source` ends; events go to the descriptor `output`. Raises msgspec.MsgspecError."""
    from robust_run.health.sensors.every import sensors_of
    from robust_run.health.sensors.runner import SensorRunner

    line = source.readline(MOST_LINE_BYTES)
    if not line:
        return
    setup = json_decoder(SensorSetup).decode(line)
    now = Now()
    world = world_of(setup, now, SystemClock())

    def emit(event: Event) -> None:
        write(msgspec.json.encode(event))

    def write(line: bytes) -> None:
        try:
            write_all(output, line + b"\n")
        except OSError:  # the agent does not read any more
            runner.stop()

    from robust_run.health.sensors.numbers.telling import telling

    def tell(measured: Measured) -> None:
        write(msgspec.json.encode(measured))

    sensors = [telling(each, tell) for each in sensors_of(setup.settings, world)]
    runner = SensorRunner(sensors, world, emit)
    listener = threading.Thread(target=_listen, args=(source, now, runner.stop), daemon=True)
    listener.start()
    runner.run(beat=lambda: write(b""))


def _listen(source: BinaryIO, now: Now, stop: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):  # the agent has hung up on what we had said and it had not read
        while line := source.readline(MOST_LINE_BYTES):
            with contextlib.suppress(msgspec.MsgspecError):
                now.attempt = json_decoder(WatchedAttempt).decode(line)
    stop()


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def die_with_parent(parent: int) -> bool:
    """Ask the kernel to end this process with the one that started it; return whether that one still lives."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return True
    return os.getppid() == parent


def main(descriptor: int | None = None) -> None:
    """Serve, then go at once: a thread that hangs in a driver must not keep the process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the agent ends us by closing our input
        signal.signal(number, signal.SIG_IGN)
    if not die_with_parent(os.getppid()):
        return
    code = 0
    try:
        if descriptor is None:
            serve(sys.stdin.buffer, sys.stdout.fileno())
        else:
            with open(descriptor, "rb", closefd=False) as source:
                serve(source, descriptor)
    except (msgspec.MsgspecError, OSError) as error:
        print(f"robust-run: the sensors cannot run: {error}", file=sys.stderr, flush=True)
        code = 1
    os._exit(code)
