"""When the recorder in C is built: beside an attempt, once, in a process of its own, and only if somebody may use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from robust_run.errors import PlatformError
from robust_run.launcher.agent.recorder_build import COMPILE_AFTER_S, TRY_AFTER_S, RecorderBuild
from robust_run.tracer.arm import place
from robust_run.tracer.native import build

LATER_S = COMPILE_AFTER_S + 1


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "robust-run"


def started(env: dict[str, str], *ages_s: float, is_wanted: bool = True) -> list[tuple[str, ...]]:
    commands: list[tuple[str, ...]] = []

    def start(argv: tuple[str, ...], env: object, keep: object) -> int:
        commands.append(argv)
        return 1

    recorder = RecorderBuild(env, start, is_wanted=is_wanted)
    for age_s in ages_s:
        recorder.build_beside(sys.executable, age_s)
    return commands


def test_it_is_compiled_once_and_not_before_workers_have_imported(cache: Path) -> None:
    assert started({}, 0.0, TRY_AFTER_S + 1, COMPILE_AFTER_S - 1) == []
    assert len(started({}, 0.0, COMPILE_AFTER_S, LATER_S, LATER_S)) == 1
    assert not cache.exists(), "the agent itself makes nothing"


def test_that_of_the_wheel_is_tried_as_soon_as_workers_run(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "is_shipped", lambda: True)
    assert started({}, 0.0) == []
    assert len(started({}, 0.0, TRY_AFTER_S, LATER_S)) == 1


@pytest.mark.parametrize("suffix", ["", build.BAD_SUFFIX])
def test_what_is_there_or_is_known_to_be_bad_is_left_alone(cache: Path, suffix: str) -> None:
    cache.mkdir(mode=0o700)
    Path(place.target_path(str(cache)) + suffix).touch()
    assert started({}, TRY_AFTER_S, LATER_S) == []


@pytest.mark.parametrize("name", ["ROBUST_TRACE", "ROBUST_TRACE_NATIVE"])
def test_it_can_be_switched_off(cache: Path, name: str) -> None:
    assert started({name: "0"}, LATER_S) == []
    assert len(started({name: "1"}, LATER_S)) == 1


def test_programs_that_are_not_python_need_none(cache: Path) -> None:
    assert started({}, LATER_S, is_wanted=False) == []


def test_a_process_that_cannot_be_started_is_no_trouble(cache: Path) -> None:
    def fail(*_: object) -> int:
        raise PlatformError("no more processes")

    RecorderBuild({}, fail, is_wanted=True).build_beside(sys.executable, LATER_S)


def test_the_process_says_in_one_line_why_there_is_none(cache: Path) -> None:
    (command,) = started({}, LATER_S)
    root = str(Path(build.__file__).parents[3])
    env = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(cache.parent), "PYTHONPATH": root}
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("robust-run: calls are recorded in Python: ")
    assert ended.stdout.count("\n") == 1
