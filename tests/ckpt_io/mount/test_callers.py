"""What `/proc` shows of a process that calls the mount, and what is made of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from robust_run.ckpt_io.mount.callers import Callers

THREAD, PROCESS = 4242, 4200


class Proc:
    """A folder that looks like `/proc`, with one process in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").symlink_to(str(os.getpid()))
        (folder / str(THREAD)).mkdir()
        (folder / str(THREAD) / "cwd").symlink_to("/")

    def shows(self, *lines: str, flags: int = 0x40010C, code: int = 0, stat: str = "") -> Callers:
        folder = self.folder / str(THREAD)
        (folder / "status").write_text("".join(f"{line}\n" for line in ("Name:\tx) R 1", f"Tgid:\t{PROCESS}", *lines)))
        fields = ["D", "1", *["0"] * 4, str(flags), *["0"] * 42, str(code)]
        (folder / "stat").write_text(stat or f"{THREAD} (x) R 1) {' '.join(fields)}\n")
        return Callers(str(self.folder))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_one_with_memory_lives_and_its_stat_is_not_read(proc: Proc) -> None:
    """The kernel keeps a reader of it waiting while that process executes another program, which waits for us."""
    callers = proc.shows("VmSize:\t    100 kB", "VmExe:\t       4 kB", "VmLib:\t       0 kB")
    (proc.folder / str(THREAD) / "stat").unlink()
    os.mkfifo(proc.folder / str(THREAD) / "stat")
    assert callers.caller(THREAD).ending == "alive"
    callers = Callers(str(proc.folder))
    status = proc.folder / str(THREAD) / "status"
    status.write_text(status.read_text().replace(" 4 kB", " 0 kB"))
    assert callers.caller(THREAD).ending == "replaced"
    assert callers.caller(THREAD).process == callers.process_of(THREAD) == PROCESS


@pytest.mark.parametrize(
    ("code", "ending"), [(0, "exited"), (256, "failed"), (9, "killed"), (15, "killed"), (139, "killed")]
)
def test_one_without_memory_ends(proc: Proc, code: int, ending: str) -> None:
    caller = proc.shows(code=code).caller(THREAD)
    assert (caller.process, caller.ending) == (PROCESS, ending)


def test_the_flag_of_a_signal_is_not_believed(proc: Proc) -> None:
    """Threads that another thread's exit ended have it, too."""
    assert proc.shows(flags=0x40050C, code=0).caller(THREAD).ending == "exited"


def test_what_cannot_be_seen_is_unknown(proc: Proc, tmp_path: Path) -> None:
    assert proc.shows(flags=0x0020_8040).caller(THREAD).ending == "unknown", "a thread of the kernel"
    assert proc.shows(stat="nonsense").caller(THREAD).ending == "unknown"
    callers = proc.shows()
    for thread in (0, -1, 999_999):
        caller = callers.caller(thread)
        assert (caller.process, caller.ending) == (None, "unknown")
        assert callers.process_of(thread) is None


def test_the_processes_of_another_namespace_are_not_taken_for_ours(proc: Proc) -> None:
    proc.shows("VmSize:\t    100 kB", "VmExe:\t       4 kB")
    (proc.folder / "self").unlink()
    (proc.folder / "self").symlink_to("1")
    assert Callers(str(proc.folder)).caller(THREAD).ending == "unknown"


def test_real_processes(tmp_path: Path) -> None:
    callers = Callers()
    assert (callers.caller(os.getpid()).process, callers.caller(os.getpid()).ending) == (os.getpid(), "alive")
    with (tmp_path / "x").open("wb"):
        assert not callers.has_another(os.getpid(), f"/{tmp_path.name}/x"), "it is on no mount of checkpoints"
        assert not callers.has_another(os.getpid(), "/another")
        with subprocess.Popen(["sleep", "3600"]) as child:
            assert not callers.has_another(child.pid, f"/{tmp_path.name}/x")
            child.kill()
    with (tmp_path / "x").open("rb"):
        assert not callers.has_another(os.getpid(), f"/{tmp_path.name}/x"), "it only reads"
