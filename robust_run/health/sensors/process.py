"""The sensors' process: one for each node, started by the agent, so that nothing a sensor does can hold the agent up.

    python -m robust_run.health.sensors.process

Its standard input is a line of JSON (`Setup`), then lines `training` and `idle`; its end ends the process. Its standard
output is one event a line, as JSON. It dies with the process that started it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from robust_run.health.sensors.settings import SensorSettings
from robust_run.health.sensors.types import Event, World

MOST_SETUP_BYTES = 1 << 20
MOST_EVENT_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


class Setup(msgspec.Struct, frozen=True, kw_only=True):
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
    interfaces: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()


def command() -> list[str]:
    """Return what starts the process. Its modules are found where ours are."""
    return [sys.executable, "-m", "robust_run.health.sensors.process"]


def first_line(setup: Setup) -> bytes:
    """Return what is to be written to its standard input first."""
    return msgspec.json.encode(setup) + b"\n"


def parse(line: bytes) -> Event | None:
    """Return the event in a line of its output, None for anything else. Never raises."""
    if len(line) > MOST_EVENT_BYTES:
        return None
    try:
        return msgspec.json.decode(line, type=Event)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def world_of(setup: Setup, training: threading.Event) -> World:
    """Return where the sensors look."""
    return World(
        proc=setup.proc,
        sys=setup.sys,
        kmsg=setup.kmsg,
        cgroups=setup.cgroups,
        nvml_library=setup.nvml_library,
        pid=setup.pid or os.getppid(),
        folders=setup.folders,
        interfaces=setup.interfaces,
        stores=setup.stores,
        is_training=training.is_set,
    )


def serve(source: BinaryIO, output: int) -> None:
    """Run the sensors until `source` ends; events go to the descriptor `output`. Raises msgspec.ValidationError."""
    from robust_run.health.sensors.every import sensors_of
    from robust_run.health.sensors.runner import Runner

    line = source.readline(MOST_SETUP_BYTES)
    if not line:
        return
    setup = msgspec.json.decode(line, type=Setup)
    training = threading.Event()
    world = world_of(setup, training)

    def emit(event: Event) -> None:
        try:
            write_all(output, msgspec.json.encode(event) + b"\n")
        except OSError:  # nobody listens any more
            runner.stop()

    runner = Runner(sensors_of(setup.settings, world), world, emit)
    listener = threading.Thread(target=_listen, args=(source, training, runner.stop), daemon=True)
    listener.start()
    runner.run()


def _listen(source: BinaryIO, training: threading.Event, stop: Callable[[], None]) -> None:
    while line := source.readline(256):
        if line == b"training\n":
            training.set()
        elif line == b"idle\n":
            training.clear()
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


def main() -> None:
    """Serve, then go at once: a thread that hangs in a driver must not keep the process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the agent ends us by closing our input
        signal.signal(number, signal.SIG_IGN)
    if not die_with_parent(os.getppid()):
        return
    code = 0
    try:
        serve(sys.stdin.buffer, sys.stdout.fileno())
    except (msgspec.MsgspecError, OSError) as error:
        print(f"robust-run: the sensors cannot run: {error}", file=sys.stderr, flush=True)
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
