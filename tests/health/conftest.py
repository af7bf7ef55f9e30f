"""What tests of sensors stand on: trees that look like /proc and /sys, a stub of NVIDIA's driver, and real kernels where root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sensor_ground import LIMIT_S, StubDriver, Tree, Watched, compile_stub

from robust_run.health.sensors.types import Sensor, SensorWorld

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.fixture
def world(tmp_path: Path) -> SensorWorld:
    """All in the tree: nothing of this machine shows."""
    return SensorWorld(
        proc=f"{tmp_path}/proc", sys=f"{tmp_path}/sys", kmsg=f"{tmp_path}/kmsg", cgroups=f"{tmp_path}/cgroup", pid=7
    )


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")


@pytest.fixture
def private() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program in namespaces of its own: `private("--mount", code)`. It ends with the test."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("needs root and unshare")
    started = []

    def start(*flags_and_code: str) -> subprocess.Popen[str]:
        *flags, code = flags_and_code
        if subprocess.run(["unshare", *flags, "true"], capture_output=True, timeout=LIMIT_S, check=False).returncode:
            pytest.skip(f"unshare {' '.join(flags)} is not allowed here")
        process = subprocess.Popen(
            ["unshare", *flags, "--", sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


@pytest.fixture
def watch() -> Iterator[Callable[..., Watched]]:
    """Run sensors in this process: `watch(world, sensor, ...)`."""
    running: list[Watched] = []

    def start(world: SensorWorld, *sensors: Sensor) -> Watched:
        running.append(Watched(sensors, world))
        return running[-1]

    yield start
    for watched in running:
        watched.runner.stop(LIMIT_S)


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler for the stub of libnvidia-ml")
    return compile_stub(compiler, tmp_path_factory.mktemp("stub"))


@pytest.fixture
def driver(stub_library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StubDriver:
    """A driver of two healthy GPUs. The library stays loaded in this process, so every test uses the same one."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    if _is_real_driver_loaded():
        pytest.skip("a real libnvidia-ml is loaded in this process")
    stub = StubDriver(stub_library, tmp_path / "gpus")
    monkeypatch.setenv("STUB_NVML_STATE", str(tmp_path / "gpus"))
    stub.set(count=2, celsius_0=60, celsius_1=61)
    return stub


def _is_real_driver_loaded() -> bool:
    maps = Path("/proc/self/maps").read_text()
    return any("libnvidia-ml" in line and "/stub" not in line for line in maps.splitlines())
