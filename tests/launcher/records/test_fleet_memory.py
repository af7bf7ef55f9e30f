"""A run leaves its facts when it is over, and nothing that goes wrong with that is a failure of the job."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import kill, run, running, script

from robust_run.errors import PlatformError
from robust_run.fleet.files import index
from robust_run.fleet.words import RunFacts
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.fleet_memory import is_trifle, leave_facts


def directory(tmp_path: Path, *, temporary: bool = False) -> RunDirectory:
    path = tmp_path / "runs" / "r1"
    path.mkdir(parents=True, mode=0o700)
    return RunDirectory(str(path), str(path), temporary)


def facts(_: str = "") -> RunFacts:
    return RunFacts(run_id="r1", began_s=1.7e9, until_s=1.7e9 + 60, state="done")


def raises(error: Exception) -> Callable[[str], RunFacts]:
    def read(_: str) -> RunFacts:
        raise error

    return read


def test_facts_lie_beside_the_run_directory(tmp_path: Path) -> None:
    said: list[str] = []
    leave_facts(directory(tmp_path), said.append, facts)
    assert index.read(str(tmp_path / "runs")).facts == (facts(),) and not said


def test_a_run_that_keeps_nothing_leaves_nothing(tmp_path: Path) -> None:
    leave_facts(directory(tmp_path, temporary=True), pytest.fail, facts)
    assert not (tmp_path / "runs" / ".fleet").exists()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "No space left on device; robust fleet reads"),
        (PlatformError("the journal is damaged"), "the journal is damaged; robust fleet reads"),
        (RuntimeError("a bug"), "by a fault of robust-run: RuntimeError: a bug; please report it"),
        (RecursionError("deep"), "by a fault of robust-run"),
    ],
)
def test_whatever_goes_wrong_is_one_line(tmp_path: Path, error: Exception, words: str) -> None:
    said: list[str] = []
    leave_facts(directory(tmp_path), said.append, raises(error))
    assert len(said) == 1 and words in said[0] and "the fleet does not keep this run" in said[0]


def test_a_folder_that_is_a_file_is_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    run = directory(tmp_path)
    (tmp_path / "runs" / ".fleet").write_text("")
    leave_facts(run, said.append, facts)
    assert len(said) == 1 and "Not a directory" in said[0]


def test_a_link_of_somebody_else_in_a_folder_of_anybody_is_not_followed(tmp_path: Path) -> None:
    said: list[str] = []
    run = directory(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "runs" / ".fleet").symlink_to(elsewhere)
    leave_facts(run, said.append, facts)  # of ours it is: a folder that several folders of runs share
    assert not said and index.read(str(tmp_path / "runs")).facts


def test_jobs_that_were_done_at_once_are_not_held_up() -> None:
    assert is_trifle("done", 1.0, 0)
    assert not is_trifle("done", 11.0, 0)
    assert not is_trifle("done", 1.0, 1)
    assert not is_trifle("failed", 1.0, 0) and not is_trifle("stopped", 1.0, 0)


# --- real jobs

FAILS = "import sys; sys.exit(3)"


def kept(tmp_path: Path) -> tuple[RunFacts, ...]:
    found = index.read(str(tmp_path / "runs"))
    assert not found.left_out
    return found.facts


def test_a_job_that_failed_leaves_its_facts_and_the_same_exit_code(tmp_path: Path) -> None:
    code, job = run(tmp_path, "--max-restarts", "1", script(tmp_path, FAILS))
    (facts_,) = kept(tmp_path)
    assert code == 3
    assert (facts_.run_id, facts_.state, len(facts_.incidents)) == (job.run_id, "failed", 2)
    assert list(facts_.node_s) == list({host for each in facts_.incidents for host in each.nodes})


def test_a_job_that_cannot_leave_them_ends_as_it_would_have(tmp_path: Path) -> None:
    path = script(tmp_path, FAILS)
    usual, _ = run(tmp_path, "--max-restarts", "0", path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / ".fleet").symlink_to("/dev/full")
    with running(tmp_path, "--max-restarts", "0", path, log_dir=tmp_path / "full") as job:
        assert job.finish() == usual
    assert "the fleet does not keep this run" in job.err


def test_a_launcher_that_is_killed_leaves_none_and_the_run_that_goes_on_does(tmp_path: Path) -> None:
    program = """
    import os, time
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not os.path.exists("again"):
        open("begun", "w").close()
        time.sleep(600)
    """
    with running(tmp_path, script(tmp_path, program)) as job:
        job.wait_for_file("begun", tmp_path)
        kill(job.process.pid, job.agent_pid())
        job.finish()
    assert kept(tmp_path) == ()
    (tmp_path / "again").touch()
    argv = [sys.executable, "-m", "robust_run", "--resume", str(job.run_dir)]
    assert subprocess.run(argv, cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=120, check=False).returncode == 0
    (facts_,) = kept(tmp_path)
    assert facts_.run_id == job.run_id and facts_.state == "done"


def test_without_a_log_folder_nothing_is_kept(tmp_path: Path) -> None:
    with running(tmp_path, script(tmp_path, FAILS), log_dir=Path(os.devnull)) as job:
        assert job.finish() != 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]
