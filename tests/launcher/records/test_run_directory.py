"""The run directory of a job of several nodes: made, joined, resumed, and what of it is elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError, UserError
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.model.events import SignalReceived
from robust_run.launcher.model.job import JobSpec, OutputStreams, Std
from robust_run.launcher.records.journal import Journal
from robust_run.launcher.records.memory_folders import remove_memory_folders
from robust_run.launcher.records.run_directory import RunDirectory

GUARD = 4_000_000 + os.getpid()
"""No process has such a pid."""
MEMORY = Path("/dev/shm")

needs_memory = pytest.mark.skipif(not os.access(MEMORY, os.W_OK), reason="no /dev/shm that can be written")


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test leaves in memory is removed."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    yield
    remove_memory_folders(GUARD)
    assert in_memory() == []


def in_memory() -> list[str]:
    return [name for name in os.listdir(MEMORY) if name.endswith(f".{GUARD}")] if MEMORY.is_dir() else []


def runs(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


# --- joining --------------------------------------------------------------------------------------------------------


def test_nodes_that_share_a_file_system_share_the_directory(tmp_path: Path) -> None:
    first = RunDirectory.create(runs(tmp_path), "r1", GUARD)
    Path(first.journal).write_text("{}\n")
    second = RunDirectory.join(runs(tmp_path), "r1", GUARD)
    assert second.path == first.path
    assert Path(second.journal).read_text() == "{}\n"


def test_git_passes_a_run_directory_over(tmp_path: Path) -> None:
    made = RunDirectory.create(runs(tmp_path), "r1", GUARD)
    assert (Path(made.path) / ".gitignore").read_text() == "*\n"
    (Path(made.path) / ".gitignore").write_text("mine\n")
    RunDirectory.join(runs(tmp_path), "r1", GUARD)
    assert (Path(made.path) / ".gitignore").read_text() == "mine\n"


def test_nodes_that_do_not_share_one_make_their_own(tmp_path: Path) -> None:
    joined = RunDirectory.join(runs(tmp_path), "r1", GUARD)
    assert stat.S_IMODE(os.stat(joined.path).st_mode) == 0o700
    assert not joined.temporary


def test_a_new_run_never_takes_a_directory_with_a_journal(tmp_path: Path) -> None:
    first = RunDirectory.create(runs(tmp_path), "r1", GUARD)
    Path(first.journal).write_text("{}\n")
    first.remove_temporary()
    with pytest.raises(UserError, match=r"r1' has the journal of a run: robust-run --resume .*r1 continues it"):
        RunDirectory.create(runs(tmp_path), "r1", GUARD)
    assert in_memory() == []


def test_a_run_that_is_over_is_not_to_be_resumed(tmp_path: Path) -> None:
    """`--resume` would refuse it."""
    first = RunDirectory.create(runs(tmp_path), "r1", GUARD)
    journal = Journal(first.journal, SystemClock(), lambda path, error: None)
    streams = OutputStreams(redirects=(Std(),), tee=(Std(),), shown=(True,))
    job = JobSpec(
        argv=("x",), script="x", is_python=False, nproc=1, run_id="r1", rdzv_id="r1", log_dir="", streams=streams
    )
    journal.open_with(job, "here")
    journal.event(
        SignalReceived(signal=15), 1.0, [Finish(exit_code=143, outcome="stopped", reason="stopped by SIGTERM")]
    )
    journal.close()
    first.remove_temporary()
    with pytest.raises(UserError, match=r"that job is over \(stopped\); another --run-id starts a new one"):
        RunDirectory.create(runs(tmp_path), "r1", GUARD)


def test_a_run_that_is_controlled_right_now_is_not_to_be_resumed(tmp_path: Path) -> None:
    first = RunDirectory.create(runs(tmp_path), "r1", GUARD)
    journal = Journal(first.journal, SystemClock(), lambda path, error: None)
    assert journal.claim()
    first.remove_temporary()
    try:
        with pytest.raises(UserError, match="another controller runs this job already; is --node-rank 0 given on two"):
            RunDirectory.create(runs(tmp_path), "r1", GUARD)
    finally:
        journal.close()


def test_a_run_that_keeps_nothing_is_removed_at_the_end(tmp_path: Path) -> None:
    joined = RunDirectory.join(None, "r1", GUARD)
    assert joined.temporary
    joined.remove_temporary()
    assert not os.path.exists(joined.path)


@pytest.mark.parametrize("run_id", ["../r1", "/etc", "", ".", "..", "a b", "x" * 129, "a\0b"])
def test_a_controller_cannot_send_a_node_to_another_folder(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(PlatformError, match="no name for a folder"):
        RunDirectory.join(runs(tmp_path), run_id, GUARD)
    assert not os.path.exists(runs(tmp_path))


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="choose a --log-dir that this node can write"):
        RunDirectory.join(runs(tmp_path), "r1", GUARD)


# --- resuming -------------------------------------------------------------------------------------------------------


def test_a_run_with_a_journal_can_be_resumed(tmp_path: Path) -> None:
    first = RunDirectory.create(runs(tmp_path), "r1", GUARD)
    Path(first.journal).write_text("{}\n")
    resumed = RunDirectory.resume(first.path)
    assert (resumed.path, resumed.memory, resumed.temporary) == (first.path, first.path, False)
    resumed.remove_temporary()
    assert os.path.exists(resumed.journal)


def test_without_a_journal_there_is_nothing_to_resume(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(UserError, match=r"no journal\.jsonl there; give the run directory"):
            RunDirectory.resume(path)


# --- in memory ------------------------------------------------------------------------------------------------------


@needs_memory
@needs_memory
def test_a_guard_follows_no_link(tmp_path: Path) -> None:
    joined = RunDirectory.join(runs(tmp_path), "r1", GUARD)
    victim = tmp_path / "victim"
    victim.mkdir()
    os.rmdir(joined.memory)
    os.symlink(victim, joined.memory)
    try:
        remove_memory_folders(GUARD)
        assert victim.is_dir()
    finally:
        os.unlink(joined.memory)


# --- where the controller answers -----------------------------------------------------------------------------------


@needs_memory
def test_files_have_names(tmp_path: Path) -> None:
    run_directory = RunDirectory("/r", "/r")
    assert (run_directory.token, run_directory.controller_log) == ("/r/token", "/r/controller.log")
