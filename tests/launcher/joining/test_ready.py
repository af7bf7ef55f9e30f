"""`robust ready`: whether a launcher of this container has joined its job. What only looks like one does not count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from jobs import running, script, wait_for

from robust_run.launcher.records.memory_folders import _owner, joined_here, remove_dead_memory
from robust_run.robust_cli import robust

RUN = f"ready-{os.getpid()}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """What a launcher with this pid has when it has joined."""
    path = Path(f"/dev/shm/robust-run-{RUN}-{_owner(os.getpid())}")
    path.mkdir(mode=0o700)
    yield path
    with suppress(FileNotFoundError):
        path.rmdir()


def test_a_launcher_that_lives_counts(folder: Path) -> None:
    assert RUN in joined_here()
    result = CliRunner().invoke(robust, ["ready"], standalone_mode=False)
    assert result.return_value == 0
    assert RUN in result.output


def test_one_that_is_gone_does_not(folder: Path) -> None:
    gone = folder.with_name(f"robust-run-{RUN}-gone-{_owner(2**22 + 1)}")  # no process has such a number
    gone.mkdir()
    try:
        assert f"{RUN}-gone" not in joined_here()
    finally:
        gone.rmdir()


def test_one_that_had_the_number_of_this_one_does_not(folder: Path) -> None:
    """Launchers of a container that is started again have the same number, and its memory may outlive it."""
    remove_dead_memory()
    assert not folder.exists()
    assert RUN not in joined_here()


def test_one_of_another_container_does_not(folder: Path) -> None:
    namespace, _, pid = _owner(os.getpid()).rpartition(".")
    other = folder.with_name(f"robust-run-{RUN}-other-{int(namespace, 16) + 1:x}.{pid}")
    other.mkdir()
    try:
        assert f"{RUN}-other" not in joined_here()
    finally:
        other.rmdir()


def test_a_job_is_ready_while_it_runs(tmp_path: Path) -> None:
    program = script(tmp_path, "import pathlib, time\nwhile not pathlib.Path('end').exists(): time.sleep(0.01)")
    with running(tmp_path, program) as job:
        wait_for(lambda: job.run_id in joined_here(), "it to be ready")
        (tmp_path / "end").touch()
        assert job.finish() == 0
    assert job.run_id not in joined_here()
