"""Set-up commands run in the environment itself, where no snapshot can be: once, and again when something changed since."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from snapshot.test_capture import all_end

from robust_run.snapshot.capture.running import Heard
from robust_run.snapshot.errors import SetupFailed
from robust_run.snapshot.restore import rerun


@pytest.fixture
def env(tmp_path: Path) -> Path:
    for name in ("env", "work"):
        (tmp_path / name).mkdir()
    return tmp_path / "env"


def run(
    env: Path, *commands: str, key: str = "k", mark: str = "", on_output: Callable[[bytes], None] = lambda _: None
) -> bool:
    return rerun.run(
        commands, key=key, folder=str(env), work_folder=str(env.parent / "work"), cwd=str(env),
        environment={"PATH": os.environ["PATH"], "TEST_MARK": mark}, python=sys.executable,
        installed=lambda: str(sorted(env.glob("*.dist-info"))), on_output=on_output,
    )  # fmt: skip


def test_commands_run_once_for_a_key(env: Path) -> None:
    assert run(env, "echo x >> ran")
    assert not run(env, "echo x >> ran")
    assert run(env, "echo x >> ran", key="another")
    assert (env / "ran").read_text() == "x\n" * 2
    assert os.listdir(env.parent / "work") == []


def test_they_run_again_where_what_they_installed_was_removed_since(env: Path) -> None:
    assert run(env, "mkdir -p tiny.dist-info")
    assert not run(env, "mkdir -p tiny.dist-info")
    (env / "tiny.dist-info").rmdir()
    assert run(env, "mkdir -p tiny.dist-info")
    assert (env / "tiny.dist-info").is_dir()


def test_they_run_again_after_a_failure(env: Path) -> None:
    for _ in range(2):
        with pytest.raises(SetupFailed, match="'echo x; exit 3' ended with 3: x"):
            run(env, "echo x; exit 3", "touch never")
    assert not (env / "never").exists()
    assert os.listdir(env.parent / "work") == []


def test_what_is_given_up_ends_with_all_that_it_started(env: Path) -> None:
    mark = f"robust-test-{uuid.uuid4().hex}"

    def give_up() -> None:
        if (env / "up").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(env, "setsid sleep 600 & touch up; sleep 600", mark=mark, on_output=Heard(lambda _: None, give_up))
    all_end(mark)
    assert os.listdir(env.parent / "work") == []


def test_signals_that_are_held_back_here_end_the_commands_all_the_same(env: Path) -> None:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        with pytest.raises(SetupFailed, match="was killed by signal 15"):
            run(env, "kill -TERM $$; sleep 600")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
