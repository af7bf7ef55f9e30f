"""What a job left in memory whose processes were all killed at once: nobody of it could remove that, the next job does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import run

MEMORY = Path("/dev/shm")


def folder_of(pid: int) -> Path:
    made = MEMORY / f"robust-run-t{uuid.uuid4().hex[:8]}-{os.stat('/proc/self/ns/pid').st_ino:x}.{pid}"
    (made / "ranks").mkdir(parents=True)
    (made / "ranks" / "0").write_bytes(b"some state")
    return made


@pytest.fixture
def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.fixture
def living_pid() -> Iterator[int]:
    living = subprocess.Popen(["sleep", "600"])
    yield living.pid
    living.send_signal(signal.SIGKILL)
    living.wait()


def test_the_next_job_removes_what_is_of_dead_launchers_and_leaves_what_is_of_living_ones(
    tmp_path: Path, dead_pid: int, living_pid: int
) -> None:
    (tmp_path / "train.py").write_text("print('done')\n")
    of_dead, of_living = folder_of(dead_pid), folder_of(living_pid)
    of_another = MEMORY / f"{of_dead.name}x"
    of_another.mkdir()
    try:
        code, job = run(tmp_path, str(tmp_path / "train.py"))
        assert code == 0, job.err
        assert (of_dead.exists(), of_living.exists(), of_another.exists()) == (False, True, True)
    finally:
        (of_living / "ranks" / "0").unlink()
        (of_living / "ranks").rmdir()
        of_living.rmdir()
        of_another.rmdir()
