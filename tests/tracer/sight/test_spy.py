"""py-spy is run within bounds, whatever it prints, however long it takes, and whoever collects its exit status."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from robust_run.tracer.sight import spy
from robust_run.tracer.sight.spy import Spy
from robust_run.tracer.types import ThreadStack

PATIENCE_S = 60.0
ANSWER = '[{"thread_name": "MainThread", "frames": [{"name": "get", "filename": "/app/data.py", "line": 8}]}]'


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was killed is waited for, however busy this machine is."""
    monkeypatch.setattr(spy, "END_S", PATIENCE_S)


def spy_that(tmp_path: Path, program: str) -> str:
    """Return the path of a program that stands in for py-spy and writes its pid to `pid`."""
    fake = tmp_path / "py-spy"
    note = f"import os; open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid()))"
    fake.write_text(
        f"#!{sys.executable} -IS\n{note}\nos.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r})\n{program}\n"
    )
    fake.chmod(0o700)
    return str(fake)


def ask(program: str, timeout_s: float = PATIENCE_S) -> tuple[ThreadStack, ...]:
    async def once() -> tuple[ThreadStack, ...]:
        return await Spy(program, timeout_s=timeout_s).stacks(1)

    return asyncio.run(once())


def is_running(program: str) -> bool:
    """Whether any process runs the program."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if program.encode() in Path("/proc", pid, "cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def test_what_it_prints_are_the_stacks(tmp_path: Path):
    (stack,) = ask(spy_that(tmp_path, f"print({ANSWER!r})"))
    assert stack.is_main
    assert [(frame.function, frame.file, frame.line) for frame in stack.frames] == [("get", "/app/data.py", 8)]


@pytest.mark.parametrize("program", ["import sys; sys.exit(1)", "print('[')", "print('x' * 9_000_000)"])
def test_one_that_fails_gives_nothing(tmp_path: Path, program: str):
    assert ask(spy_that(tmp_path, program)) == ()


def test_one_that_cannot_be_started_gives_nothing(tmp_path: Path):
    assert ask(str(tmp_path / "none")) == ()


@pytest.mark.parametrize("before", ["", f"print({ANSWER!r}, flush=True)"])
def test_one_that_does_not_end_gives_nothing_and_is_ended(tmp_path: Path, before: str):
    program = spy_that(tmp_path, f"{before}\nimport time\ntime.sleep(600)")
    assert ask(program, timeout_s=0.3) == ()
    assert not is_running(program)


def test_one_that_prints_without_end_gives_nothing_and_is_ended(tmp_path: Path):
    program = spy_that(tmp_path, "while True: print('x' * 100_000)")
    assert ask(program) == ()
    assert not is_running(program)


def test_a_process_that_gave_nothing_once_is_not_asked_again(tmp_path: Path):
    async def twice() -> None:
        asked = Spy(spy_that(tmp_path, "print('[]')"), timeout_s=PATIENCE_S)
        assert await asked.stacks(1) == ()
        (tmp_path / "pid").unlink()
        assert await asked.stacks(1) == ()

    asyncio.run(twice())
    assert not (tmp_path / "pid").exists()


def test_that_its_exit_status_was_collected_already_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    """The agent adopts orphans and collects whatever has ended; here the kernel does, so that it is always the first."""
    program = spy_that(tmp_path, f"print({ANSWER!r})")
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        stacks = ask(program)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert len(stacks) == 1
    assert caplog.records == []
    assert capfd.readouterr().err == ""


def test_who_no_longer_waits_is_not_held_up_and_the_spy_still_ends(tmp_path: Path):
    program = spy_that(tmp_path, "import time\ntime.sleep(600)")

    async def gives_up() -> bool:
        task = asyncio.create_task(Spy(program, timeout_s=5).stacks(1))
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait([task], timeout=4)
        return task.cancelled()

    assert asyncio.run(asyncio.wait_for(gives_up(), 30))
    assert not is_running(program)
