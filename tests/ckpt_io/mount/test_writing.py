"""Unmodified programs save through a mount: what they write is striped, and is a checkpoint once it is closed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import wait_for
from prefetch.private_mounts import privately
from safetensors.torch import load_file, save_file

from robust_run.ckpt_io.address import Address
from robust_run.ckpt_io.catalog import prune
from robust_run.ckpt_io.errors import FailedBefore, TargetLost
from robust_run.ckpt_io.mount.callers import Caller
from robust_run.ckpt_io.mount.closing import Written
from robust_run.ckpt_io.mount.manage import mount
from robust_run.ckpt_io.mount.operations import error_number
from robust_run.ckpt_io.mount.saving_file import SavingFile
from robust_run.ckpt_io.mount.serve import make_operations
from robust_run.ckpt_io.mount.types import MountOptions
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.store.errors import from_os_error

from .conftest import Mount

MIB = 1 << 20


@pytest.fixture
def point(mounted: Mount, tmp_path: Path) -> Path:
    """A writable mount of `a`, with a second target `b`."""
    return Path(mounted(tmp_path / "a", also=(str(tmp_path / "b"),), writable=True, unit_bytes=MIB).point)


def saved(folder: Path, name: str) -> bytes:
    """Return the one file of a checkpoint, not through the mount."""
    with open_checkpoint(str(folder / name)) as checkpoint:
        assert [file.name for file in checkpoint.manifest.files] == [name]
        return checkpoint.read_bytes(0, 0, checkpoint.manifest.files[0].size_bytes)


def test_torch_save_is_striped_and_loads(point: Path, tmp_path: Path) -> None:
    state = {"weight": torch.randn(1_500_000), "step": 3}
    torch.save(state, point / "model.pt")
    assert torch.equal(torch.load(point / "model.pt")["weight"], state["weight"])
    for target in ("a", "b"):
        assert sum(part.stat().st_size for part in (tmp_path / target / "model.pt").rglob("*.part")) >= 2 * MIB
    torch.save(state, tmp_path / "plain.pt")
    assert abs(len(saved(tmp_path / "a", "model.pt")) - (tmp_path / "plain.pt").stat().st_size) < 4096


def test_it_is_there_when_it_is_closed_and_not_before(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb") as file:
        file.write(b"1" * 3 * MIB)
        assert not (tmp_path / "a" / "x" / "MANIFEST").exists()
    assert saved(tmp_path / "a", "x") == b"1" * 3 * MIB
    with (point / "x").open("wb") as file:
        file.write(b"2" * MIB)
        file.flush()
        assert saved(tmp_path / "a", "x") == b"1" * 3 * MIB
    assert saved(tmp_path / "a", "x") == b"2" * MIB
    assert (point / "x").read_bytes() == b"2" * MIB


def test_written_aside_synced_and_renamed(point: Path, tmp_path: Path) -> None:
    (point / "model.bin").write_bytes(b"old")
    data = os.urandom(3 * MIB + 5)
    with (point / "model.bin.tmp").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(point / "model.bin.tmp", point / "model.bin")
    assert os.listdir(point) == ["model.bin"]
    assert (point / "model.bin").read_bytes() == data
    assert saved(tmp_path / "a", "model.bin") == data
    assert sorted(os.listdir(tmp_path / "a")) == sorted(os.listdir(tmp_path / "b")) == ["model.bin"]
    assert len(list((tmp_path / "a" / "model.bin").glob("parts-*"))) == 1


def test_folders_copies_and_removal(point: Path, tmp_path: Path) -> None:
    os.makedirs(point / "run" / "step-1")
    save_file({"w": torch.arange(10.0)}, point / "run" / "step-1" / "model.safetensors")
    assert torch.equal(load_file(point / "run" / "step-1" / "model.safetensors")["w"], torch.arange(10.0))
    shutil.copy2(point / "run" / "step-1" / "model.safetensors", point / "run" / "copy")
    assert (point / "run" / "copy").read_bytes() == (point / "run" / "step-1" / "model.safetensors").read_bytes()
    assert sorted(os.listdir(point / "run")) == ["copy", "step-1"]
    shutil.rmtree(point / "run" / "step-1")
    assert os.listdir(point / "run") == ["copy"]
    (point / "run" / "copy").unlink()
    assert not list((tmp_path / "a").rglob("*.part"))
    assert not list((tmp_path / "b").rglob("*.part"))


def test_who_writes_on_after_a_sync_loses_nothing(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * 2 * MIB)
        os.fsync(file.fileno())
        assert saved(tmp_path / "a", "x") == b"1" * 2 * MIB
        file.write(b"2" * 100)
    assert saved(tmp_path / "a", "x") == b"1" * 2 * MIB + b"2" * 100


def test_a_shell_and_numpy(point: Path) -> None:
    script = '(echo one; echo two) > "$0"; cat "$0"'
    done = subprocess.run(["sh", "-c", script, str(point / "x")], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"one\ntwo\n"
    np.save(point / "y.npy", np.arange(300_000))
    assert np.array_equal(np.load(point / "y.npy", mmap_mode="c"), np.arange(300_000))
    (point / "empty").touch()
    assert (point / "empty").read_bytes() == b""


def test_a_child_that_ends_does_not_end_the_file(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * MIB)
        subprocess.run(["true"], pass_fds=[file.fileno()], timeout=60, check=True)
        assert not (tmp_path / "a" / "x" / "MANIFEST").exists()
        file.write(b"2" * MIB)
    assert saved(tmp_path / "a", "x") == b"1" * MIB + b"2" * MIB


def test_who_opens_an_empty_file_sees_it_while_the_thread_that_commits_it_is_not_done(
    fuse: None, tmp_path: Path
) -> None:
    """The kernel does not wait for a release: who closed the file goes on meanwhile."""
    options = MountOptions(url=str(tmp_path / "a"), point=str(tmp_path / "mnt"), writable=True, refresh_s=60.0)
    operations = make_operations(options, lambda: None)
    for name in ("x", "y"):
        with pytest.raises(FileNotFoundError):
            operations.getattr(f"/{name}")
        written = Written(SavingFile(Address(f"{tmp_path}/a/{name}"), operations.saving, lambda _: None), 1, name)
        operations.put(written)
        written.authors.closed(Caller(1, "alive", ""), has_another=False, has_bytes=False, end="unknown")
        written.file.commit(operations._kept_aside)  # and nothing more so far
    operations.release("/x", operations.open("/x", os.O_RDONLY))
    operations.rename("/y", "/z")
    assert sorted(operations.names("/")) == ["x", "z"]
    operations.destroy("/")


def test_what_cannot_be_done_is_an_error_and_harms_nothing(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(b"12345")
    for mode in ("ab", "r+b"):
        with pytest.raises(OSError) as caught:
            (point / "x").open(mode)
        assert caught.value.errno == errno.ENOTSUP
    assert saved(tmp_path / "a", "x") == b"12345"


@pytest.mark.parametrize("name", ["x", "new"])
@pytest.mark.parametrize(
    ("refused", "number", "written"),
    [
        ("seek", errno.ESPIPE, b""),
        ("seek", errno.ESPIPE, b"2" * 5000),
        ("seek", errno.ESPIPE, b"2" * 3 * MIB),
        ("truncate", errno.EINVAL, b"2" * 5000),
    ],
)
def test_a_file_of_which_a_write_was_refused_is_not_saved(
    mounted: Mount, tmp_path: Path, name: str, refused: str, number: int, written: bytes
) -> None:
    """Whoever closes it, and however: the program that wrote it was told that it is not what it wanted."""
    with (tmp_path / "log").open("wb") as log:
        options = MountOptions(url=str(tmp_path / "a"), point=str(tmp_path / "mnt"), lifeline=True, writable=True)
        with mount(options, lambda _: None, log=log) as made:
            point = Path(made.point)
            (point / "x").write_bytes(b"1" * MIB)
            file = (point / name).open("wb", buffering=0)
            for at in range(0, len(written), 4096):
                file.write(written[at : at + 4096])
            with pytest.raises(OSError) as caught:
                file.seek(10) and file.write(b"3") if refused == "seek" else file.truncate(10)
            assert caught.value.errno == number
            with pytest.raises(OSError, match="Input/output"):
                file.write(b"4")
            with pytest.raises(OSError, match="Input/output"):
                file.close()
            assert saved(tmp_path / "a", "x") == (point / "x").read_bytes() == b"1" * MIB
            wait_for(lambda: os.listdir(point) == ["x"], "a free name")
    (line,) = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("robust:")]
    assert f"{name}: not saved: " in line and line.endswith("What the name stood for stays")


def test_programs_that_seek_back_leave_the_old_file_whole(point: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "local.npz", a=np.arange(3000))
    shutil.copy(tmp_path / "local.npz", point / "x.npz")
    with pytest.raises(OSError):
        np.savez(point / "x.npz", a=np.arange(500_000))
    assert np.array_equal(np.load(point / "x.npz")["a"], np.arange(3000))
    with pytest.raises(OSError), zipfile.ZipFile(point / "x.npz", "w") as archive:
        archive.writestr("a", bytes(MIB))
    assert saved(tmp_path / "a", "x.npz") == (tmp_path / "local.npz").read_bytes()


def test_a_refused_write_after_a_sync_leaves_what_was_synced(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * MIB)
        os.fsync(file.fileno())
        file.seek(10)
        with pytest.raises(OSError, match="Illegal seek"):
            file.write(b"2")
        with pytest.raises(OSError, match="Input/output"):
            file.close()
    assert saved(tmp_path / "a", "x") == b"1" * MIB


def test_a_stranger_who_may_not_cut_a_file_does_no_harm(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * 1000)
        with pytest.raises(OSError, match="Invalid argument"):
            os.truncate(point / "x", 10)
        file.write(b"2" * 1000)
    assert saved(tmp_path / "a", "x") == b"1" * 1000 + b"2" * 1000


def test_what_is_still_open_when_the_mount_goes_is_not_saved(mounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made = mounted(tmp_path / "a", writable=True, unit_bytes=MIB)
    (Path(made.point) / "x").write_bytes(b"old")
    descriptor = os.open(f"{made.point}/x", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, bytes(3 * MIB))
    made.close()
    with suppress(OSError):
        os.close(descriptor)
    assert saved(tmp_path / "a", "x") == b"old"
    assert len(list((tmp_path / "a" / "x").glob("parts-*"))) == 1


def test_a_target_that_cannot_be_written_is_an_error_and_the_old_file_stays(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(b"old")
    shutil.rmtree(tmp_path / "b" / "x")
    (tmp_path / "b" / "x").write_bytes(b"in the way")
    with pytest.raises(OSError):  # noqa: SIM117
        with (point / "x").open("wb") as file:
            file.write(b"2" * 5 * MIB)
    os.unlink(tmp_path / "b" / "x")
    assert (tmp_path / "a" / "x" / "MANIFEST").exists()
    assert (point / "x").read_bytes() == b"old"
    assert sorted(os.listdir(point)) == ["x"]


def test_a_write_that_failed_leaves_its_name_free(point: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "new").write_bytes(b"in the way")
    with pytest.raises(OSError):  # noqa: SIM117
        with (point / "new").open("wb") as file:
            file.write(b"2" * 5 * MIB)
    assert os.listdir(point) == []
    assert not (tmp_path / "a" / "new").exists()
    os.unlink(tmp_path / "b" / "new")
    (point / "new").write_bytes(b"now")
    assert saved(tmp_path / "a", "new") == b"now"


def test_pruning_takes_nothing_of_a_file_that_is_being_written(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb", buffering=0) as file:
        file.write(b"1" * 5 * MIB)
        prune(f"{tmp_path}/a", also=[f"{tmp_path}/b"], grace_s=0, now_s=lambda: 4e9)
        assert [(point / name).stat().st_size for name in os.listdir(point)] == [5 * MIB]
        file.write(b"2" * 5 * MIB)
    assert saved(tmp_path / "a", "x") == b"1" * 5 * MIB + b"2" * 5 * MIB


@privately
def test_a_full_disk_is_told_as_one(mounted: Mount, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", tmp_path / "a"], capture_output=True)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr!r}")
    point = Path(mounted(tmp_path / "a", writable=True, unit_bytes=MIB).point)
    (point / "x").write_bytes(b"1" * MIB)
    for size in (7 * MIB + 1, 30 * MIB):  # the one shows when it is closed, the other one while it is written
        descriptor = os.open(point / "x", os.O_WRONLY | os.O_TRUNC)
        numbers = []
        for _ in range(0, size, MIB):
            try:
                os.write(descriptor, b"2" * MIB)
            except OSError as error:
                numbers.append(error.errno)
        assert set(numbers) <= {errno.ENOSPC}
        with pytest.raises(OSError) as caught:
            os.close(descriptor)
        assert caught.value.errno == errno.ENOSPC
    assert numbers
    assert saved(tmp_path / "a", "x") == (point / "x").read_bytes() == b"1" * MIB


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_keeps_its_number_whatever_it_led_to(number: int) -> None:
    full = from_os_error(OSError(number, os.strerror(number)), "/a", "x")
    full.__cause__ = OSError(number, os.strerror(number))
    lost = TargetLost("/a", "x: full")
    lost.__cause__ = full
    failed = FailedBefore("x failed before")
    failed.__cause__ = lost
    assert {error_number(error) for error in (full, lost, failed)} == {number}
    assert error_number(TargetLost("/a", "x: gone")) == errno.EIO


def test_a_file_that_is_there_is_not_cut_in_place(point: Path, tmp_path: Path) -> None:
    (point / "x").write_bytes(b"12345")
    for length in (0, 3, 9):
        with pytest.raises(OSError) as caught:
            os.truncate(point / "x", length)
        assert caught.value.errno == errno.EOPNOTSUPP
    os.truncate(point / "x", 5)
    assert (point / "x").read_bytes() == saved(tmp_path / "a", "x") == b"12345"


def test_a_folder_of_files_that_are_no_checkpoints_is_not_removed(point: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "logs").mkdir(parents=True)
    (tmp_path / "a" / "logs" / "log.txt").write_text("mine")
    assert os.listdir(point / "logs") == []
    with pytest.raises(OSError) as caught:
        (point / "logs").rmdir()
    assert caught.value.errno == errno.ENOTEMPTY
    assert (tmp_path / "a" / "logs" / "log.txt").read_text() == "mine"


def test_a_link_to_a_checkpoint_is_read_and_neither_moved_nor_removed_with_what_it_leads_to(
    point: Path, tmp_path: Path
) -> None:
    (point / "x").write_bytes(b"12345")
    (tmp_path / "a" / "away").mkdir()
    (tmp_path / "a" / "x").rename(tmp_path / "a" / "away" / "x")
    (tmp_path / "a" / "x").symlink_to("away/x")
    assert (point / "x").read_bytes() == b"12345"
    with pytest.raises(PermissionError):
        (point / "x").unlink()
    with pytest.raises(PermissionError):
        (point / "x").rename(point / "y")
    (point / "z").write_bytes(b"other")
    with pytest.raises(PermissionError):
        (point / "z").rename(point / "x")
    assert saved(tmp_path / "a" / "away", "x") == b"12345"
