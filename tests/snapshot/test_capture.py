"""Capturing: failures, what is outside, what is left running, being killed."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from snapshot.environments import TREE

from robust_run.snapshot.capture import bytecode, outside, scan
from robust_run.snapshot.capture.capturing import Setup, capture, discard
from robust_run.snapshot.capture.stage import plain_mode, split_whiteouts
from robust_run.snapshot.errors import CaptureRefused, SetupFailed
from robust_run.snapshot.types import Root

WAYS = pytest.mark.parametrize("way", ["overlay", "scan"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    return folder


def setup_of(root: Path, *commands: str, **changes: object) -> Setup:
    work = root.parent / "work"
    work.mkdir(exist_ok=True)
    if changes.get("way") == "overlay" and os.geteuid() != 0:
        pytest.skip("an overlay as root needs root")
    settings: dict[str, object] = {
        "commands": commands,
        "cwd": str(root),
        "roots": (Root(folder="0", path=str(root)),),
        "environment": {"PATH": os.environ["PATH"]},
        "python": (sys.executable,),
        "work_folders": (str(work),),
        "watch": (),
        **changes,
    }
    return Setup(**settings)  # type: ignore[arg-type]


def names_in(work: Path) -> list[str]:
    return os.listdir(work)


@WAYS
def test_a_command_that_fails_ends_the_setup_with_its_last_words(root: Path, way: str) -> None:
    heard: list[bytes] = []
    setup = setup_of(root, "echo one", "echo no such package >&2; exit 3", "echo never", way=way)
    with pytest.raises(SetupFailed, match=r"exit 3' ended with 3: no such package"):
        capture(setup, heard.append)
    assert heard == [b"one\n", b"no such package\n"]
    assert names_in(root.parent / "work") == []


@WAYS
def test_what_a_command_leaves_running_is_ended(root: Path, way: str) -> None:
    setup = setup_of(root, "setsid sleep 600 & echo $! > pid", way=way)
    found = capture(setup)
    pid = int(Path(found.stage, "r0/pid").read_text())
    discard(found)
    assert not Path(f"/proc/{pid}").exists()


def test_changes_outside_are_named_and_happen_to_nobody(root: Path, tmp_path: Path) -> None:
    system = tmp_path / "usr"
    (system / "lib").mkdir(parents=True)
    (system / "lib/there.so").write_text("x")
    command = f"echo y > {system}/lib/new.so; rm {system}/lib/there.so; mkdir {system}/__pycache__; touch {system}/__pycache__/a"
    setup = setup_of(root, command, way="overlay", watch=(str(system),))
    with pytest.raises(CaptureRefused) as refused:
        capture(setup)
    assert f"{system}/lib/new.so" in str(refused.value)
    assert f"{system}/lib/there.so (removed)" in str(refused.value)
    assert "__pycache__" not in str(refused.value)
    assert os.listdir(system / "lib") == ["there.so"]
    assert names_in(root.parent / "work") == []


def test_without_overlays_changes_outside_are_found_by_their_time(root: Path, tmp_path: Path) -> None:
    system = tmp_path / "usr"
    (system / "lib").mkdir(parents=True)
    (system / "lib/there.so").write_text("x")
    (system / "untouched").write_text("x")
    command = f"echo y > {system}/new.so; rm {system}/lib/there.so"
    found = capture(setup_of(root, command, way="scan", watch=(str(system),), on_outside="note"))
    discard(found)
    assert found.outside == (f"{system}/lib/ (something in it was removed)", f"{system}/new.so")


def test_changes_in_the_home_are_noted_and_not_refused(root: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    found = capture(setup_of(root, f"touch {home}/.cache/x {home}/.toolrc", way="scan", home=str(home)))
    discard(found)
    assert found.outside == (f"{home}/.toolrc (perhaps by another program)",)


def test_no_overlay_where_the_work_lies_in_a_root(root: Path) -> None:
    inside = root / "work"
    inside.mkdir()
    setup = setup_of(root, "true", way="overlay", work_folders=(str(inside),))
    with pytest.raises(CaptureRefused, match="is captured"):
        capture(setup)
    found = capture(
        setup_of(root, "rm old.txt; touch new.txt", way="auto", work_folders=(str(inside), str(root.parent)))
    )
    discard(found)
    assert {(item.path, item.kind) for item in found.items} >= {("old.txt", "w"), ("new.txt", "f")}


def test_where_all_work_lies_in_a_root_nothing_is_run(root: Path) -> None:
    with pytest.raises(CaptureRefused, match="set TMPDIR"):
        capture(setup_of(root, "touch ran", work_folders=(str(root),)))
    assert os.listdir(root) == ["old.txt"]


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1]
    except OSError:  # it may end between opening and reading
        return False


def test_a_builder_that_is_killed_leaves_the_environment_as_it_was_and_nothing_running(root: Path) -> None:
    setup = setup_of(root, "rm old.txt; touch new.txt; echo $$; sleep 600", way="overlay")
    code = (
        "import sys, msgspec; sys.path[:0] = sys.argv[1].split(':')\n"
        "from robust_run.snapshot.capture.capturing import Setup, capture\n"
        "capture(msgspec.convert(msgspec.json.decode(sys.argv[2]), Setup), lambda line: print(line.decode(), flush=True))\n"
    )
    import msgspec

    argv = [sys.executable, "-c", code, str(TREE), msgspec.json.encode(setup).decode()]
    builder = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/", start_new_session=True)
    assert builder.stdout is not None
    shell = int(builder.stdout.readline())
    builder.kill()
    builder.wait(30)
    builder.stdout.close()
    assert os.listdir(root) == ["old.txt"]
    deadline_s = time.monotonic() + 30
    try:
        while is_running(shell):
            assert time.monotonic() < deadline_s, "the set-up goes on although its builder was killed"
            time.sleep(0.01)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell, signal.SIGKILL)


def test_modes_lose_special_bits_and_give_all_what_the_owner_may_read_and_run() -> None:
    assert plain_mode(stat.S_IFREG | 0o6755) == 0o755
    assert plain_mode(0o600) == 0o644
    assert plain_mode(0o1700) == 0o755
    assert plain_mode(0o444) == 0o444


def test_what_differs_between_two_scans() -> None:
    folder, file = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o644
    before = {"a": (folder,), "a/x": (file, 1), "a-b": (file, 2), "d": (folder,), "d/x": (file, 3), "same": (file, 4)}
    after = {"a-b": (file, 5), "d": (file, 6), "same": (file, 4), "new": (file, 7)}
    assert scan.compared(before, after) == (["a-b", "d", "new"], ["a"])


def test_bytecode_of_what_was_there_before_is_no_change(tmp_path: Path) -> None:
    cache = tmp_path / "old/deep/__pycache__"
    cache.mkdir(parents=True)
    (cache / "module.cpython-311.pyc").write_bytes(b"x")
    mine = tmp_path / "mine/__pycache__"
    mine.mkdir(parents=True)
    (tmp_path / "mine/module.py").write_text("")
    (mine / "module.cpython-311.pyc").write_bytes(b"x")
    assert bytecode.drop_orphans(str(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(mine) == ["module.cpython-311.pyc"]


def test_an_opaque_folder_removes_what_it_hides(tmp_path: Path) -> None:
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    (lower / "d/sub").mkdir(parents=True)
    (lower / "d/a").touch()
    (lower / "d/sub/b").touch()
    (upper / "d/sub").mkdir(parents=True)
    (upper / "d/sub/c").touch()
    try:
        os.setxattr(upper / "d", "user.overlay.opaque", b"y")
    except OSError:
        pytest.skip("no extended attributes here")
    assert split_whiteouts(str(upper), str(lower)) == (["d/a", "d/sub/b"], [])


def test_roots_and_the_work_are_not_outside(tmp_path: Path) -> None:
    assert outside.watchable([Root(folder="0", path=str(tmp_path / "usr/env"))], [str(tmp_path)]) == [str(tmp_path)]
    assert outside.watchable([Root(folder="0", path=str(tmp_path))], [str(tmp_path)]) == []
