"""The steps file: what is written is read, and nothing that may lie there breaks the reader."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worker_side import load_worker_side

from robust_run.tracer.files import arming, steps


@pytest.fixture(scope="module")
def worker_side() -> ModuleType:
    """The file that counts in workers."""
    return load_worker_side().load("counting")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "steps")
    steps.create(path)
    return path


def hook_of(worker_side: ModuleType, path: str, *, tracing: bool = False):
    torch = SimpleNamespace(compiler=SimpleNamespace(is_dynamo_compiling=lambda: tracing))
    return worker_side.counter(*worker_side.open_cells(path), torch, path)


def test_both_sides_have_the_same_layout(worker_side: ModuleType) -> None:
    names = ["MAGIC", "VERSION", "FILE_BYTES"] + [name for name in dir(steps) if name.endswith("_CELL")]
    assert len(names) == 12
    assert {name: getattr(worker_side, name) for name in names} == {name: getattr(steps, name) for name in names}
    assert runpy.run_path(f"{arming.ARM_FOLDER}/tracebacks.py")["RAISED_CELL"] == steps.RAISED_CELL


def test_a_new_file_is_nobodys_and_has_no_steps(path: str) -> None:
    assert os.path.getsize(path) == steps.FILE_BYTES
    assert steps.read(path) == steps.StepCount(pid=0, steps=0, first_step_monotonic_s=None, last_step_monotonic_s=None)


def test_every_call_of_the_hook_is_a_step(worker_side: ModuleType, path: str) -> None:
    hook = hook_of(worker_side, path)
    for _ in range(3):
        hook(object(), (), {})
    count = steps.read(path)
    assert count is not None
    assert (count.pid, count.steps) == (os.getpid(), 3)
    assert count.first_step_monotonic_s is not None
    assert count.last_step_monotonic_s is not None
    assert count.first_step_monotonic_s <= count.last_step_monotonic_s


def test_a_step_that_is_being_traced_is_not_counted(worker_side: ModuleType, path: str) -> None:
    hook_of(worker_side, path, tracing=True)(object(), (), {})
    count = steps.read(path)
    assert count is not None
    assert count.steps == 0


def test_a_file_that_another_process_has_claimed_is_left_alone(worker_side: ModuleType, path: str) -> None:
    numbers, _ = worker_side.open_cells(path)
    numbers[steps.PID_CELL] = os.getpid() + 1
    hook_of(worker_side, path)(object(), (), {})
    count = steps.read(path)
    assert count is not None
    assert (count.pid, count.steps) == (os.getpid() + 1, 0)


def test_creating_a_file_again_forgets_the_attempt_before(worker_side: ModuleType, path: str) -> None:
    hook_of(worker_side, path)(object(), (), {})
    steps.create(path)
    count = steps.read(path)
    assert count is not None
    assert (count.pid, count.steps) == (0, 0)


def test_a_missing_file_and_a_folder_are_not_counts(tmp_path: Path) -> None:
    assert steps.read(str(tmp_path / "absent")) is None
    assert steps.read(str(tmp_path)) is None
    assert steps.read("a\0name") is None


def test_a_short_file_and_another_version_are_not_counts(path: str) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:-1])
    assert steps.read(path) is None
    Path(path).write_bytes(steps.MAGIC + (steps.VERSION + 1).to_bytes(8, sys.byteorder) + content[16:])
    assert steps.read(path) is None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.one_of(st.binary(max_size=100), st.binary(min_size=48, max_size=100).map(lambda rest: steps.MAGIC + rest)))
def test_junk_never_breaks_the_reader(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "junk"
    path.write_bytes(junk)
    count = steps.read(str(path))
    assert count is None or junk.startswith(steps.MAGIC)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.binary(min_size=56, max_size=56))
def test_any_content_of_a_right_file_is_readable(tmp_path: Path, cells: bytes) -> None:
    path = tmp_path / "cells"
    path.write_bytes(steps.MAGIC + steps.VERSION.to_bytes(8, sys.byteorder) + cells)
    count = steps.read(str(path))
    assert count is not None
    assert count.steps == int.from_bytes(cells[8:16], sys.byteorder)


@pytest.mark.parametrize(
    ("env", "pythonpath", "noted"),
    [
        ({}, arming.ARM_FOLDER, ""),
        ({"PYTHONPATH": ""}, arming.ARM_FOLDER, "="),
        ({"PYTHONPATH": "/a:/b"}, f"{arming.ARM_FOLDER}:/a:/b", "=/a:/b"),
        (  # a launcher inside a worker whose Python ignored the arming
            {"PYTHONPATH": f"{arming.ARM_FOLDER}:/a", "ROBUST_ARM_PYTHONPATH": "=/a"},
            f"{arming.ARM_FOLDER}:/a",
            "=/a",
        ),
        ({"PYTHONPATH": arming.ARM_FOLDER, "ROBUST_ARM_PYTHONPATH": ""}, arming.ARM_FOLDER, ""),
    ],
)
def test_arming_goes_first_on_the_path_and_notes_what_was_there(env: dict, pythonpath: str, noted: str) -> None:
    assert arming.arm_environment(env, "/run/steps") == {
        "PYTHONPATH": pythonpath,
        "ROBUST_ARM_PYTHONPATH": noted,
        "ROBUST_STEPS_FILE": "/run/steps",
    }


def test_robust_trace_0_arms_nothing() -> None:
    assert arming.arm_environment({"ROBUST_TRACE": "0", "PYTHONPATH": "/a"}, "/run/steps") == {}
    assert arming.arm_environment({"ROBUST_TRACE": "1"}, "/run/steps") != {}
