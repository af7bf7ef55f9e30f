"""A mount goes when its process is told to, when its parent dies, and, the latest, when the next one is made."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest
from made_checkpoints import make_checkpoint
from prefetch.private_mounts import privately

from robust_run.ckpt_io.mount.manage import mount, stop
from robust_run.ckpt_io.mount.mounts import clear_stale, ours, state_of
from robust_run.ckpt_io.mount.types import MountOptions
from robust_run.errors import PlatformError, UserError

from .conftest import Mount

LIMIT_S = 60.0


def is_mounted(point: str) -> bool:
    return any(each.point == point for each in ours())


def wait_until_gone(point: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while is_mounted(point):
        assert time.monotonic() < until_s, f"{point} is still mounted"
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_checkpoint([tmp_path / "run" / "x.bin"], {"x.bin": b"hello"})
    return tmp_path / "run"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_unmounts(mounted: Mount, run: Path, number: int) -> None:
    made = mounted(run)
    made.process.send_signal(number)
    assert made.process.wait(LIMIT_S) == 0
    assert not is_mounted(made.point)


@privately
def test_unmounting_ends_the_process(mounted: Mount, run: Path) -> None:
    made = mounted(run)
    stop(made.point)
    assert made.process.wait(LIMIT_S) == 0
    with pytest.raises(UserError, match="no checkpoints are mounted there"):
        stop(made.point)


@privately
def test_a_mount_in_use_is_not_taken_away_unless_asked(mounted: Mount, run: Path) -> None:
    made = mounted(run)
    with open(f"{made.point}/x.bin", "rb") as file:
        with pytest.raises(PlatformError, match="--lazy"):
            stop(made.point)
        stop(made.point, lazily=True)
        assert not is_mounted(made.point)
        assert file.read() == b"hello"
    assert made.process.wait(LIMIT_S) == 0


def test_the_mount_goes_when_its_parent_is_killed(fuse: None, run: Path, tmp_path: Path) -> None:
    point = str(tmp_path / "mnt")
    program = f"""
        import os, signal
        from robust_run.ckpt_io.mount.manage import mount
        from robust_run.ckpt_io.mount.types import MountOptions
        made = mount(MountOptions(url={str(run)!r}, point={point!r}, lifeline=True), print)
        assert os.listdir({point!r}) == ["x.bin"]
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until_gone(point)
    assert os.listdir(point) == []


def test_no_file_of_the_folder_it_is_mounted_from_is_run(fuse: None, run: Path, tmp_path: Path) -> None:
    """A user stands in /tmp, where another has put a robust_run."""
    decoy, touched = tmp_path / "decoy", tmp_path / "touched"
    (decoy / "robust_run").mkdir(parents=True)
    (decoy / "robust_run" / "__init__.py").write_text(f"open({str(touched)!r}, 'w')")
    program = f"""
        import sys
        del sys.path[0]
        from robust_run.ckpt_io.mount.manage import mount
        from robust_run.ckpt_io.mount.types import MountOptions
        with mount(MountOptions(url={str(run)!r}, point={str(tmp_path / "mnt")!r}, lifeline=True), print):
            pass
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=decoy, timeout=120, check=False)
    assert not touched.exists()
    assert done.returncode == 0


def test_after_kill_9_readers_fail_and_the_next_mount_clears_what_is_left(mounted: Mount, run: Path) -> None:
    made = mounted(run)
    descriptor = os.open(f"{made.point}/x.bin", os.O_RDONLY)
    made.process.kill()
    made.process.wait(LIMIT_S)
    with pytest.raises(OSError) as caught:
        os.read(descriptor, 10)
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    with suppress(OSError):  # closing says it again
        os.close(descriptor)
    assert state_of(made.point) == "stale"
    said: list[str] = []
    with mount(MountOptions(url=str(run), point=made.point, lifeline=True), said.append) as again:
        assert any(made.point in text and "killed" in text for text in said)
        assert Path(again.point, "x.bin").read_bytes() == b"hello"
    assert not is_mounted(made.point)
    assert clear_stale(made.point) == []


def test_a_file_that_was_not_closed_when_the_mount_was_killed_does_not_exist(
    mounted: Mount, run: Path, tmp_path: Path
) -> None:
    made = mounted(run, writable=True, unit_bytes=1 << 20)
    descriptor = os.open(f"{made.point}/x.bin", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, bytes(3 << 20))
    made.process.kill()
    made.process.wait(LIMIT_S)
    with pytest.raises(OSError, match=r"x.bin|not connected|aborted"):
        os.write(descriptor, b"more")
    with suppress(OSError):
        os.close(descriptor)
    assert [each.point for each in clear_stale(made.point)] == [made.point]
    again = mounted(run)
    assert Path(again.point, "x.bin").read_bytes() == b"hello"
    (parts,) = (run / "x.bin").glob("parts-*")
    assert list(parts.iterdir())


def test_a_new_name_can_be_written_after_the_mount_was_killed_while_it_was(
    mounted: Mount, run: Path, tmp_path: Path
) -> None:
    made = mounted(run, writable=True, unit_bytes=1 << 20)
    descriptor = os.open(f"{made.point}/model.pt", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, bytes(5 << 20))
    made.process.kill()
    made.process.wait(LIMIT_S)
    with suppress(OSError):
        os.close(descriptor)
    assert [each.point for each in clear_stale(made.point)] == [made.point]
    point = Path(mounted(run, writable=True, unit_bytes=1 << 20).point)
    assert os.listdir(point) == os.listdir(run) == ["x.bin"]
    with pytest.raises(FileNotFoundError):
        (point / "model.pt").stat()
    (point / "model.pt").write_bytes(b"again")
    assert (point / "model.pt").read_bytes() == b"again"


def test_what_cannot_be_mounted_is_said_in_a_line(fuse: None, run: Path, tmp_path: Path) -> None:
    point = str(tmp_path / "mnt")
    with pytest.raises(PlatformError, match=r"not mounted: .*nowhere.*no such"):
        mount(MountOptions(url=str(tmp_path / "nowhere"), point=point), print)
    assert not is_mounted(point)
    with pytest.raises(UserError, match="not empty"):
        mount(MountOptions(url=str(run), point=str(run)), print)


def test_lines_of_mountinfo(tmp_path: Path) -> None:
    lines = (
        r"231 29 0:54 / /mnt/a\040b rw,nosuid shared:9 - fuse.rrck /ssd0/run rw,user_id=0",
        "30 1 0:3 / /proc rw - proc proc rw",
        "",
    )
    (tmp_path / "table").write_text("\n".join(lines))
    (made,) = ours(str(tmp_path / "table"))
    assert (made.point, made.source, made.device) == ("/mnt/a b", "/ssd0/run", "0:54")


def test_the_kernel_asks_for_more_at_once_where_we_may_tell_it_to(mounted: Mount, run: Path) -> None:
    made = mounted(run, read_ahead_bytes=1 << 20)
    device = next(each.device for each in ours() if each.point == made.point)
    setting = Path(f"/sys/class/bdi/{device}/read_ahead_kb")
    if not os.access(setting, os.W_OK):
        pytest.skip("only root may set what the kernel reads ahead")
    try:
        setting.write_text("1024")
    except OSError as error:
        pytest.skip(f"the kernel's settings are read-only here: {error}")
    again = mounted(run, read_ahead_bytes=2 << 20)
    device = next(each.device for each in ours() if each.point == again.point)
    assert Path(f"/sys/class/bdi/{device}/read_ahead_kb").read_text().strip() == "2048"
