"""Where the mount cannot see who writes (another PID namespace), nothing is guessed and nothing vanishes."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from jobs import wait_for
from safetensors.torch import load_file, save_file

from robust_run.ckpt_io.catalog import latest, list_checkpoints
from robust_run.ckpt_io.mount.mounts import ours, unmount
from robust_run.ckpt_io.mount.types import MountOptions
from robust_run.ckpt_io.reading import open_checkpoint

from .test_ending_savers import DATA, OLD, held, killed, run


@pytest.fixture
def point(fuse: None, tmp_path: Path) -> Iterator[Path]:
    """A writable mount of `a` whose server is in a PID namespace of its own, with its words in `log`."""
    if os.getuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root makes a PID namespace with unshare")
    point = tmp_path / "mnt"
    point.mkdir()
    options = MountOptions(url=str(tmp_path / "a"), point=str(point), writable=True, lifeline=True, unit_bytes=1 << 20)
    argv = [sys.executable, "-m", "robust_run.ckpt_io.mount.serve", msgspec.json.encode(options).decode()]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--kill-child", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert server.stdin is not None and server.stdout is not None
    try:
        said = server.stdout.readline()
        if b'"error":""' not in said:
            pytest.skip(f"not mounted from a PID namespace: {said!r} {(tmp_path / 'log').read_text()}")
        yield point
    finally:
        server.stdin.close()
        server.wait(60)  # it takes its mount away
        if any(each.point == str(point) for each in ours()):
            unmount(str(point), lazily=True)
        server.stdout.close()


def test_files_that_show_their_end_are_saved(point: Path, tmp_path: Path) -> None:
    state = {"w": torch.arange(500_000.0)}
    for _ in range(2):
        torch.save(state, point / "x.pt")
        save_file(state, point / "x.safetensors")
    assert torch.equal(torch.load(point / "x.pt")["w"], state["w"])
    assert torch.equal(load_file(point / "x.safetensors")["w"], state["w"])
    (point / "empty").touch()
    wait_for(lambda: held(tmp_path / "a" / "empty") == b"", "an empty file")
    assert sorted(os.listdir(point)) == ["empty", "x.pt", "x.safetensors"]


def test_what_was_synced_is_saved(point: Path, tmp_path: Path) -> None:
    for data in (OLD, DATA):
        with (point / "x").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        assert held(tmp_path / "a" / "x") == data


def aside(root: Path) -> list[Path]:
    return list(root.glob("*.unfinished"))


def test_anything_else_is_an_error_and_is_kept_aside(point: Path, tmp_path: Path) -> None:
    with (point / "x").open("wb") as file:
        file.write(OLD)
        file.flush()
        os.fsync(file.fileno())
    file = (point / "x").open("wb")
    file.write(DATA)
    with pytest.raises(OSError) as caught:
        file.close()
    assert caught.value.errno == errno.EIO
    (kept,) = wait_for(lambda: aside(tmp_path / "a"), "what was written")
    assert held(tmp_path / "a" / "x") == OLD

    def listed() -> str:
        return next(each.state for each in list_checkpoints(str(tmp_path / "a")) if each.name == kept.name)

    wait_for(lambda: listed() == "temporary", "its manifest: the folder is there before")
    newest = latest(str(tmp_path / "a"))
    assert newest is not None and newest.name == "x"
    wait_for(lambda: f"It is kept as {kept.name}" in (tmp_path / "log").read_text(), "a line in the log")
    os.rename(point / kept.name, point / "x")
    assert held(tmp_path / "a" / "x") is not None
    with open_checkpoint(str(tmp_path / "a" / "x")) as checkpoint:
        assert checkpoint.read_bytes(0, 0, len(DATA)) == DATA


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_is_killed_changed_nothing(point: Path, tmp_path: Path, number: signal.Signals) -> None:
    run("is_killed_after_syncing", point / "x")
    killed("waits", point / "x", number)
    assert held(tmp_path / "a" / "x") == DATA
    killed("waits", point / "new", number)
    wait_for(lambda: len(aside(tmp_path / "a")) == 2, "what was written")
    assert held(tmp_path / "a" / "new") is None
    wait_for(lambda: [name for name in os.listdir(point) if not name.endswith(".unfinished")] == ["x"], "a free name")
    killed("waits_before_the_first_byte", point / "x", number)
    assert held(tmp_path / "a" / "x") == DATA
