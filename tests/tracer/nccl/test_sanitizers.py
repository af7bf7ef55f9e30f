"""The same events under AddressSanitizer with UndefinedBehaviorSanitizer, and under ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tracer.nccl.playing import (
    ALL_GATHER,
    COLL,
    COMM,
    LIMIT_S,
    MAKE_COMM,
    OP,
    SPARE,
    STEP,
    VERSIONS,
    compile_driver,
    proxy_op,
    step_up_to,
    steps,
)

from robust_run.tracer.plugin import build, layout, reader

SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread"}

SCRIPT = [
    MAKE_COMM,
    ALL_GATHER,
    proxy_op(),
    f"stop {COLL}",
    steps(0, 8),
    *step_up_to(3, [8, 20, 9]),
    *[f"stop {STEP}"] * 2,
    *[f"stop {OP}"] * 2,
    f"p2p {COMM} {COLL} Send 100 ncclFloat32 -1",
    f"op {COMM} {OP} {COLL} 4242 255 -1 -5 1",
    f"step {COMM} {STEP} {OP} -1",
    f"state {STEP} 9 -1",
    "comm 7 x 1 0x7fffffff 0x7fffffff 0x7fffffff",
    *(
        line
        for kind in range(16)
        for line in (
            f"raw {SPARE} {kind << 60 | 77777}",
            f"stop {SPARE}",
            f"state {SPARE} 9 1",
            f"event 0 {STEP} {SPARE} 16",
        )
    ),
    "null",
    "play 8 200 0",
    "play 8 200 1",
    "fight 8 5000",
    "finalize 0",
    "comm 0 again 1 1 1 0",
    "play 2 100 0",
    "sync",
    "",
]


@pytest.fixture(scope="module", params=SANITIZERS)
def sanitized(
    request: pytest.FixtureRequest, compiler: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """The driver and the plugin, compiled with a sanitizer that works here."""
    flags = [SANITIZERS[request.param], "-g", "-fno-omit-frame-pointer", "-Wno-tsan"]
    folder = tmp_path_factory.mktemp(request.param)
    driver, plugin = str(folder / "driver"), str(folder / "plugin.so")
    problem = compile_driver(compiler, driver, flags)
    if problem:
        pytest.skip(f"the compiler has no {request.param} sanitizer: {problem.splitlines()[-1]}")
    argv = build.command(compiler, build.SOURCE, plugin, flags)
    subprocess.run(argv, check=True, capture_output=True, timeout=LIMIT_S)
    probe = run(driver, plugin, 6, "/nowhere", "sync\n")
    if probe.returncode:
        pytest.skip(f"the {request.param} sanitizer does not run here: {probe.stderr.strip().splitlines()[0]}")
    return driver, plugin


def run(driver: str, plugin: str, version: int, path: str, script: str) -> subprocess.CompletedProcess[str]:
    """Play a script; without randomised addresses where that can be had, which ThreadSanitizer needs on new kernels."""
    setarch = shutil.which("setarch")
    argv = [*([setarch, "-R"] if setarch else []), driver, plugin, str(version)]
    variables = {layout.PATH_VARIABLE: path, "TSAN_OPTIONS": "exitcode=66", "UBSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        argv, input=script, env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_to_complain_of(sanitized: tuple[str, str], version: int, tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    layout.create(path)
    result = run(*sanitized, version, path, "\n".join(SCRIPT))
    assert result.stderr == ""
    assert (result.returncode, result.stdout) == (0, "ok\n")
    trace = reader.read(path)
    assert trace is not None
    assert trace.glance.communicators == 3
