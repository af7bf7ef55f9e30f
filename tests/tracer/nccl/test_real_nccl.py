"""The NCCL of PyPI's wheels loads the plugin by its own loader and drives it by its own code: no GPU is needed for that."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nccl_parts import WHEELS, library
from tracer.nccl.playing import rungs

from robust_run.tracer.plugin import layout, reader

LIMIT_S = 100


@pytest.fixture(params=WHEELS)
def name(request: pytest.FixtureRequest) -> str:
    assert isinstance(request.param, str)
    return request.param


def start(plugin: str, name: str, direction: str, tmp_path: Path) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "NCCL_PROFILER_PLUGIN": plugin,
        layout.PATH_VARIABLE: str(tmp_path / "trace.nccl"),
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "WARN",
    }
    program = Path(__file__).with_name("inside_nccl.py")
    return subprocess.Popen(
        [sys.executable, str(program), str(library(name)), direction],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_looks_for_interfaces_that_the_plugin_has(plugin: str, name: str) -> None:
    content = library(name).read_bytes()
    asked = {number for number in range(1, 10) if f"ncclProfiler_v{number}\0".encode() in content}
    newest = WHEELS[name][2]
    assert max(asked) == newest
    ours = ctypes.CDLL(plugin)
    for number in asked & set(range(3, 10)):
        assert ctypes.c_void_p.in_dll(ours, f"ncclProfiler_v{number}")


@pytest.mark.parametrize("direction", ["send", "recv"])
def test_its_own_code_tells_the_plugin_what_a_proxy_does(
    plugin: str, name: str, direction: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "trace.nccl")
    layout.create(path)
    process = start(plugin, name, direction, tmp_path)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            pytest.fail(f"NCCL ended it: {process.communicate(timeout=LIMIT_S)[1][-2000:]}")
        stuck = reader.read(path)
        _, errors = process.communicate("stop\n", timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, errors
    said = json.loads(line)
    assert name.endswith(".".join(map(str, said["version"])))
    assert said["contexts"] == [(1 << 60) + 1], "NCCL keeps what the plugin gave it, and that only"
    assert stuck is not None
    assert (stuck.glance.pid, stuck.glance.api) == (process.pid, WHEELS[name][2])
    assert (stuck.glance.stale, stuck.glance.unknown, stuck.glance.dropped, stuck.glance.foreign) == (0, 0, 0, 0)
    (flow,) = stuck.flows
    assert (flow.direction, flow.rank, flow.channel, flow.peer, flow.steps) == (direction, 5, 3, 6, 4)
    assert (rungs(flow), flow.open_ops) == ((3, 2, 2, 2), 1)
    assert flow.bytes == (0 if stuck.glance.api == 3 else 2000)
    after = reader.read(path)
    assert after is not None
    assert after.flows[0].open_ops == 0
    assert after.communicators[0].closed_s is not None


def test_a_plugin_without_a_file_makes_no_difference(plugin: str, name: str, tmp_path: Path) -> None:
    """It asks for no event, and NCCL goes on."""
    process = start(plugin, name, "send", tmp_path / "gone")
    _, errors = process.communicate("", timeout=LIMIT_S)
    assert "IndexError" in errors, "no context was given"
    assert "NCCL WARN" not in errors
