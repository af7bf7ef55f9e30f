"""A snapshot in a mount namespace that no process keeps: who sees it, when it ends, and what is left when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from snapshot.environments import TREE, needs_squashfs_tools
from snapshot.made import snapshot_of, some_files

from robust_run.mounts import squashfs
from robust_run.snapshot.restore import directly
from robust_run.snapshot.restore.place import PlaceOrder
from robust_run.snapshot.restore.unpacked import Folder
from robust_run.snapshot.rules.restore_ladder import Rung


@pytest.fixture
def order(tmp_path: Path) -> PlaceOrder:
    needs_squashfs_tools()
    if os.geteuid() != 0:
        pytest.skip("mounting without a user namespace needs root")
    for name in ("env", "stage"):
        (tmp_path / name).mkdir()
    manifest, image = snapshot_of(tmp_path, str(tmp_path / "env"), some_files)
    folders = (Folder(path=str(tmp_path / "node")),)
    return PlaceOrder(
        manifest=manifest, image=image, image_url=image, stage=str(tmp_path / "stage"), unpack_in=folders,
        rungs=("mount",),
    )  # fmt: skip


def held(order: PlaceOrder) -> directly.Held:
    """Hold it, or skip where this root may not mount."""
    found = directly.hold(order)
    if found is None:
        pytest.skip("this root may not mount, or there are no loop devices")
    return found


def backing_files() -> set[str]:
    """Files that loop devices show."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.add(path.read_text().strip())
        except OSError:
            continue
    return found


def is_given_back(image: str) -> bool:
    deadline_s = time.monotonic() + 60
    while image in backing_files() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return image not in backing_files()


@pytest.mark.parametrize("rung", ["mount", "extract"])
def test_programs_see_it_at_the_same_path_and_we_do_not(order: PlaceOrder, rung: Rung) -> None:
    place = held(msgspec.structs.replace(order, rungs=(rung,)))
    env = order.manifest.roots[0].path
    try:
        argv = place.command(["/bin/sh", "-c", "ls -R; echo new > written; cat written"], env)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert "__init__.py" in done.stdout and done.stdout.endswith("new\n")
        assert os.listdir(env) == os.listdir(order.stage) == []
        with open("/proc/self/mountinfo", encoding="utf-8") as table:
            assert env not in table.read()
    finally:
        place.stop()
    place.stop()
    assert is_given_back(order.image)


def test_a_program_that_outlives_us_keeps_it_and_then_the_device_is_given_back(order: PlaceOrder) -> None:
    place = held(order)
    env = order.manifest.roots[0].path
    try:
        argv = place.command(["/bin/sh", "-c", "echo in; read go; ls -R"], env)
        program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None and program.stdout.readline() == "in\n"
        assert order.image in backing_files()
    finally:
        place.stop()
    assert "__init__.py" in program.communicate("go\n", timeout=60)[0]
    assert is_given_back(order.image)


def test_what_cannot_be_mounted_leaves_nothing_and_is_left_to_others(order: PlaceOrder) -> None:
    Path(order.image).write_bytes(b"no squashfs" * 1000)
    assert directly.hold(order) is None
    assert os.listdir(order.stage) == []
    os.rmdir(order.stage)
    assert is_given_back(order.image)
    os.mkdir(order.stage)
    with pytest.raises(OSError):
        squashfs.by_loop(order.image, order.stage)
    assert is_given_back(order.image)


def test_what_needs_a_living_process_is_left_to_one(order: PlaceOrder) -> None:
    for change in ({"rungs": ("userns", "extract")}, {"lazy": msgspec.Raw(b"{}")}):
        assert directly.hold(msgspec.structs.replace(order, **change)) is None  # type: ignore[arg-type]


_HOLD = """
import sys, time; sys.path[:0] = sys.argv[1].split(":")
import msgspec
from robust_run.snapshot.restore import directly
from robust_run.snapshot.restore.place import PlaceOrder
place = directly.hold(msgspec.json.decode(sys.argv[2], type=PlaceOrder))
print("held" if place else "not", flush=True)
time.sleep(600)
"""


def test_when_who_holds_it_is_killed_nothing_is_left(order: PlaceOrder) -> None:
    argv = [sys.executable, "-c", _HOLD, str(TREE), msgspec.json.encode(order).decode()]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if said != "held\n":
            pytest.skip("this root may not mount, or there are no loop devices")
        assert order.image in backing_files()
    finally:
        process.kill()
        process.communicate(timeout=60)
    assert is_given_back(order.image)
    os.rmdir(order.stage)
