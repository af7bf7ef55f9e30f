"""What tests of sensors stand on: trees that look like /proc and /sys, sensors at work, a stub of NVIDIA's driver."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from robust_run.health.sensors.runner import SensorRunner
from robust_run.health.sensors.types import Event, Sensor, SensorWorld

LIMIT_S = 60.0
STUB_SOURCE = Path(__file__).parent / "health" / "sensors" / "stub_nvml.c"
STUB_FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wl,-soname,libnvidia-ml.so.1")
"""Under this name nvidia-ml-py finds the stub again, once it is loaded."""


def compile_stub(compiler: str, folder: Path) -> str:
    """Return the path of the stub of NVIDIA's library."""
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, *STUB_FLAGS, "-o", str(library), str(STUB_SOURCE)], check=True, timeout=60)
    return str(library)


class Tree:
    """A folder of small files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **files: object) -> None:
        """Write files; `__` in a name stands for a slash."""
        for name, content in files.items():
            self.put(name.replace("__", "/"), content)

    def put(self, name: str, content: object) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n" if not isinstance(content, str) else content)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.path / name)

    def __str__(self) -> str:
        return str(self.path)


class Watched:
    """Sensors at work, and what they said."""

    def __init__(self, sensors: tuple[Sensor, ...], world: SensorWorld) -> None:
        self.events: list[Event] = []
        self._turned: set[int] = set()
        counted = [self._count(number, sensor) for number, sensor in enumerate(sensors)]
        self.runner = SensorRunner(counted, world, self.events.append)
        self.runner.start()

    def _count(self, number: int, sensor: Sensor) -> Sensor:
        def judge(state: Any, sample: Any, now_s: float) -> Any:
            self._turned.add(number)
            return sensor.judge(state, sample, now_s)

        return dataclasses.replace(sensor, judge=judge)

    def wait_for_first_turns(self, sensors: int) -> None:
        """Return when so many sensors have read once: they tell what happens from now on from what was before."""
        deadline_s = time.monotonic() + LIMIT_S
        while len(self._turned) < sensors:
            assert time.monotonic() < deadline_s, "the sensors never came to read"
            time.sleep(0.01)

    def wait_for(self, name: str, kind: str = "alert", limit_s: float = LIMIT_S) -> Event:
        """Return the first event of that name. Fails after `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while time.monotonic() < deadline_s:
            self.runner.look()
            found = next((event for event in list(self.events) if (event.name, event.kind) == (name, kind)), None)
            if found is not None:
                return found
            time.sleep(0.01)
        raise AssertionError(f"no {kind} {name} within {limit_s:g} s; there were {self.events}")


class StubDriver:
    """NVIDIA's driver, as a file describes it."""

    def __init__(self, library: str, state: Path) -> None:
        self.library = library
        self._state = state
        self._lines: dict[str, object] = {}

    def set(self, **values: object) -> None:
        """`set(count=2, lost_1=1, down_0_2=1)`; a value of 0 takes the line away."""
        self._lines.update(values)
        lines = []
        for name, value in self._lines.items():
            key, *at = name.split("_")
            if value:
                lines.append(" ".join([key, *(at or ["0"]), str(value)]))
        replacement = self._state.with_suffix(".new")
        replacement.write_text("\n".join(lines) + "\n")
        replacement.replace(self._state)  # never seen half written
