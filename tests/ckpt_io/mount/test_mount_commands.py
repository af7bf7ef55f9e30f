"""`robust ckpt mount` and `unmount`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io.mount.mounts import ours, unmount
from robust_run.errors import UserError
from robust_run.robust_cli import robust

ROBUST = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "ckpt"]


@pytest.fixture
def point(fuse: None, tmp_path: Path):
    """A folder that nothing is mounted on when the test is over."""
    path = str(tmp_path / "mnt")
    yield path
    if any(each.point == path for each in ours()):
        unmount(path, lazily=True)


def typed(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*ROBUST, *map(str, arguments)], capture_output=True, text=True, timeout=100, check=False)


def test_it_stays_until_it_is_unmounted(point: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_checkpoint([tmp_path / "run" / "x"], {"x": b"hello"})
    log = tmp_path / "log"
    done = typed("mount", tmp_path / "run", point, "--log", log, "--json")
    assert done.returncode == 0, done.stderr
    pid = json.loads(done.stdout)["pid"]
    assert Path(point, "x").read_bytes() == b"hello"
    assert robust(["ckpt", "mount", "--list", "--json"], standalone_mode=False) == 0
    listed = json.loads(capsys.readouterr().out)["mounts"]
    assert {"point": point, "url": str(tmp_path / "run"), "state": "served"} in listed
    again = typed("mount", tmp_path / "run", point)
    assert (again.returncode, "mounted there already" in again.stderr) == (2, True)
    done = typed("unmount", point)
    assert (done.returncode, done.stdout) == (0, f"robust: {point} is unmounted\n")
    assert not os.listdir(point)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)  # no child of ours: it outlived the command that started it


def test_in_the_foreground_it_goes_with_the_command(point: str, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "run" / "x"], {"x": b"hello"})
    argv = [*ROBUST, "mount", str(tmp_path / "run"), point, "--foreground", "--direct-io"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert "is mounted on" in process.stdout.readline()
        assert Path(point, "x").read_bytes() == b"hello"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not os.listdir(point)


def test_words_that_are_missing_are_said() -> None:
    for arguments in (["mount"], ["mount", "/x"], ["unmount"]):
        with pytest.raises(UserError, match="robust ckpt"):
            robust(["ckpt", *arguments], standalone_mode=False)


def test_what_a_reader_is_not_told_is_in_the_log(point: str, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "run" / "x"], {"x": b"hello"})
    part = next((tmp_path / "run").rglob("*.part"))
    part.write_bytes(b"hullo")
    log = tmp_path / "log"
    assert typed("mount", tmp_path / "run", point, "--log", log).returncode == 0
    with pytest.raises(OSError, match="Input/output"):
        Path(point, "x").read_bytes()
    assert "unit 0" in log.read_text()
    assert typed("unmount", point).returncode == 0


def test_a_log_may_be_a_bare_name(point: str, tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "run" / "x"], {"x": b"hello"})
    argv = [*ROBUST, "mount", str(tmp_path / "run"), point, "--log", "mine.log"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine.log").exists()
    assert typed("unmount", point).returncode == 0
