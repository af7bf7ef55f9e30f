"""Real folders in memory: programs that know nothing of them save into them, and are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jobs import wait_for

from robust_run.ckpt_io.memory_dir import mounting
from robust_run.ckpt_io.memory_dir.types import FinishWithin, FromDir, MemoryDirOptions, Written
from robust_run.ckpt_io.mount.manage import check_device
from robust_run.ckpt_io.mount.mounts import ours
from robust_run.errors import PlatformError, UserError

MIB = 1 << 20


class Mounted:
    def __init__(self, options: MemoryDirOptions) -> None:
        mounting.check(options, lambda text: None)
        self.options = options
        self.point = Path(options.point)
        self.process = mounting.start(options, os.environ)

    def finish(self) -> list[Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(FinishWithin(limit_s=60.0)) + b"\n")
        self.process.stdin.flush()
        heard = []
        for line in self.process.stdout:
            heard.append(msgspec.json.decode(line, type=FromDir))
            if isinstance(heard[-1], Written):
                break
        return heard


@pytest.fixture(autouse=True)
def needs_fuse() -> None:
    try:
        check_device()
        import mfusepy  # noqa: F401
    except (PlatformError, OSError, ImportError) as error:
        pytest.skip(str(error))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Mounted]]:
    with ExitStack() as stack:

        def make(**options: Any) -> Mounted:
            made = Mounted(MemoryDirOptions(point=str(tmp_path / "m"), **options))
            assert made.process.stdout is not None
            stack.enter_context(made.process.stdout)
            stack.callback(mounting.stop, made.process, made.options.point)
            return made

        yield make


SAVES = """
import os, sys, torch
path, number = sys.argv[1], int(sys.argv[2])
state = {"number": number, "weights": torch.full((1 << 18,), float(number))}
%s
"""
DIES = """
class Dies:
    def __reduce__(self):
        os.kill(os.getpid(), 9)
torch.save({**state, "last": Dies()}, path)
"""


def saves(how: str, path: Path, number: int) -> int:
    return subprocess.run([sys.executable, "-c", SAVES % how, path, str(number)], check=False).returncode


def test_torch_save_is_seen_whole_or_not_at_all_and_reaches_storage(
    mounted: Callable[..., Mounted], tmp_path: Path
) -> None:
    import torch

    folder = mounted(storage=str(tmp_path / "s"))
    assert saves("torch.save(state, path)", folder.point / "a.pt", 1) == 0
    assert saves(DIES, folder.point / "a.pt", 2) == -signal.SIGKILL
    for mapped in (False, True):
        assert torch.load(folder.point / "a.pt", mmap=mapped)["number"] == 1
    assert saves("torch.save(state, path + '.tmp'); os.replace(path + '.tmp', path)", folder.point / "a.pt", 3) == 0
    whole = (folder.point / "a.pt").read_bytes()
    heard = folder.finish()
    assert heard[-1].lost_files == 0
    assert (tmp_path / "s" / "a.pt").read_bytes() == whole
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["a.pt"]
    assert "killed by SIGKILL" in heard[0].text


def test_safetensors_numpy_and_checkpoints_of_ours_save_into_it(
    mounted: Callable[..., Mounted], tmp_path: Path
) -> None:
    import numpy
    import torch
    from safetensors.torch import load_file, save_file

    from robust_run.ckpt_io import dcp
    from robust_run.ckpt_io.newest import newest_path

    folder = mounted(storage=str(tmp_path / "s"))
    save_file({"a": torch.arange(1000.0)}, folder.point / "a.safetensors")
    numpy.savez(folder.point / "a.npz", a=numpy.arange(1000))
    dcp.save({"a": torch.arange(1000.0)}, str(folder.point / "step-1"), step=1)
    assert newest_path(str(folder.point)) == str(folder.point / "step-1")
    assert folder.finish()[-1].lost_files == 0
    for place in (folder.point, tmp_path / "s"):
        assert load_file(place / "a.safetensors")["a"].sum() == 499500
        assert numpy.load(place / "a.npz")["a"].sum() == 499500
        assert dcp.load_whole(str(place / "step-1"))["a"].sum() == 499500


def test_a_file_is_read_while_it_is_flushed(mounted: Callable[..., Mounted], tmp_path: Path) -> None:
    folder = mounted(storage=str(tmp_path / "s"))
    data = os.urandom(32 * MIB)
    (folder.point / "a").write_bytes(data)
    while not (tmp_path / "s" / "a").exists():
        assert (folder.point / "a").read_bytes() == data
    assert (tmp_path / "s" / "a").read_bytes() == data


def test_without_room_write_says_enospc(mounted: Callable[..., Mounted]) -> None:
    folder = mounted(limit_bytes=16 * MIB)
    with pytest.raises(OSError, match="No space left"):
        (folder.point / "a").write_bytes(bytes(20 * MIB))
    assert os.listdir(folder.point) == []
    (folder.point / "a").write_bytes(bytes(10 * MIB))


def test_what_finds_no_room_goes_to_storage(mounted: Callable[..., Mounted], tmp_path: Path) -> None:
    folder = mounted(limit_bytes=16 * MIB, storage=str(tmp_path / "s"))
    data = [os.urandom(20 * MIB) for _ in range(3)]
    for number, each in enumerate(data):
        (folder.point / f"{number}").write_bytes(each)
    assert [(folder.point / f"{number}").read_bytes() for number in range(3)] == data
    folder.finish()
    assert [(tmp_path / "s" / f"{number}").read_bytes() for number in range(3)] == data


def test_it_ends_with_who_started_it_and_its_memory_with_it(mounted: Callable[..., Mounted]) -> None:
    folder = mounted()
    (folder.point / "a").write_bytes(bytes(MIB))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        folder.process.send_signal(number)
    time.sleep(0.1)
    assert (folder.point / "a").exists(), "schedulers send signals to all processes of a job"
    assert folder.process.stdin is not None
    folder.process.stdin.close()
    assert folder.process.wait(60.0) == 0
    assert not [each for each in ours() if each.point == str(folder.point)]


def test_what_a_killed_one_left_is_cleared_by_the_next(mounted: Callable[..., Mounted], tmp_path: Path) -> None:
    first = mounted(storage=str(tmp_path / "s"))
    (first.point / "a").write_bytes(b"a")
    wait_for((tmp_path / "s" / "a").exists, "the file in storage")
    first.process.kill()
    first.process.wait()
    second = mounted(storage=str(tmp_path / "s"))
    assert (second.point / "a").read_bytes() == b"a"


@pytest.mark.parametrize("storage", ["m/s", ".", "m"])
def test_folders_that_lie_in_each_other_are_refused(tmp_path: Path, storage: str) -> None:
    options = MemoryDirOptions(point=str(tmp_path / "m"), storage=str(tmp_path / storage))
    with pytest.raises(UserError, match="one lies in the other"):
        mounting.check(options, lambda text: None)


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match="is not empty: choose an empty folder"):
        mounting.check(MemoryDirOptions(point=str(tmp_path)), lambda text: None)
