"""Capturing: failures, what is outside, what is left running, being killed."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from snapshot.environments import TREE

from robust_run.snapshot.capture import bytecode, outside, scan, stage
from robust_run.snapshot.capture.capturing import CaptureSetup, capture, discard
from robust_run.snapshot.capture.in_image import drop_passing
from robust_run.snapshot.capture.running import Heard, run_inside
from robust_run.snapshot.capture.stage import plain_mode, split_whiteouts
from robust_run.snapshot.capture.types import CaptureOrder
from robust_run.snapshot.errors import CaptureRefused, SetupFailed, SnapshotError
from robust_run.snapshot.rules.types import Root

WAYS = pytest.mark.parametrize("way", ["overlay", "scan"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    folder.mkdir()
    (folder / "old.txt").write_text("old")
    return folder


def setup_of(root: Path, *commands: str, **changes: object) -> CaptureSetup:
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
    return CaptureSetup(**settings)  # type: ignore[arg-type]


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
    mark = f"robust-test-{uuid.uuid4().hex}"
    discard(capture(setup_of(root, f"MARK={mark} setsid sleep 600 &", way=way)))
    all_end(mark)


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


def marked(mark: str) -> list[int]:
    """Processes that run and have a mark in their environment. (They may have other numbers where they are.)"""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it may end between listing and reading
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def all_end(mark: str) -> None:
    """Wait for the end of what was killed: on a busy machine it takes a moment to leave the kernel. By itself it lives longer."""
    wait_until(lambda: not marked(mark), "what the set-up started goes on")


_BUILDER = """
import os, signal, sys, msgspec; sys.path[:0] = sys.argv[1].split(':')
from robust_run.snapshot.capture.capturing import CaptureSetup, capture
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})  # as a launcher does
capture(msgspec.convert(msgspec.json.decode(sys.argv[2]), CaptureSetup), lambda line: print(line.decode(), flush=True))
"""


@contextlib.contextmanager
def builder_of(setup: CaptureSetup, mark: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that captures; all that carries the mark is killed in the end."""
    argv = [sys.executable, "-c", _BUILDER, str(TREE), msgspec.json.encode(setup).decode()]
    env = {**os.environ, "TEST_MARK": mark}
    pipe = subprocess.PIPE
    builder = subprocess.Popen(argv, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True, env=env)
    try:
        yield builder
    finally:
        builder.kill()
        builder.communicate(timeout=60)
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def of_command(mark: str, word: bytes) -> list[int]:
    """The marked processes that have a word in their command line."""
    found = []
    for pid in marked(mark):
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def victim_pids(victims: str, builder: int, inside: int, below: list[int]) -> list[int]:
    """Process numbers ascend from the builder to the first of the namespace."""
    chosen = {"the builder": [builder], "the process inside": [inside], "both": [builder, inside]}
    return chosen.get(victims) or below[-1:]


@pytest.mark.parametrize("way", ["overlay", "scan"])
@pytest.mark.parametrize("victims", ["the builder", "the process inside", "both", "the first of the namespace"])
def test_nothing_of_a_set_up_outlives_whoever_is_killed(root: Path, way: str, victims: str) -> None:
    """Nor what it started in sessions of its own; and the environment is as it was."""
    if os.geteuid() != 0:
        pytest.skip("without root only the overlay's user namespace can enclose it")
    mark = f"robust-test-{uuid.uuid4().hex}"
    command = "setsid sleep 600 & sleep 600 & echo up; wait; sleep 600"
    environment = {"PATH": os.environ["PATH"], "TEST_MARK": mark}
    with builder_of(setup_of(root, command, way=way, environment=environment), mark) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == b"up\n"
        inside, *below = sorted(of_command(mark, b"inside.main"))
        if victims == "the first of the namespace" and not below:
            pytest.skip("no process namespace here")
        first, *others = victim_pids(victims, builder.pid, inside, below)
        os.kill(first, signal.SIGKILL)
        for pid in others:
            with contextlib.suppress(ProcessLookupError):  # it ended with the first
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not marked(mark), "the set-up goes on though who ran it was killed")
        _, said = builder.communicate(timeout=60)
    assert os.listdir(root) == ["old.txt"]
    if victims in ("the process inside", "the first of the namespace"):
        assert b"was killed" in said
        assert b"CaptureRefused" not in said, "it must not be run once more, in the environment"
    if victims != "both":
        assert names_in(root.parent / "work") == [], "whoever is left removes what lies about"


def test_what_cannot_be_enclosed_ends_too(root: Path, tmp_path: Path) -> None:
    """As for an ordinary user without namespaces."""
    mark = f"robust-test-{uuid.uuid4().hex}"
    order = CaptureOrder(
        layers=(), watched=(), commands=(f"export MARK={mark}; setsid sleep 600 & sleep 600",), cwd=str(root),
        private=(), parent=os.getpid(), enclose=False,
    )  # fmt: skip

    def kill_inside() -> None:
        for pid in of_command(mark, b"sleep"):
            status = Path(f"/proc/{pid}/status").read_text()
            shell = int(status.split("PPid:\t")[1].split()[0])
            parent = Path(f"/proc/{shell}/status").read_text().split("PPid:\t")[1].split()[0]
            if b"inside.main" in Path(f"/proc/{parent}/cmdline").read_bytes():
                os.kill(int(parent), signal.SIGKILL)
                return

    with pytest.raises(SnapshotError, match="was killed by signal 9"):
        run_inside(order, str(tmp_path), {"PATH": os.environ["PATH"]}, Heard(lambda _: None, kill_inside))
    all_end(mark)


def test_signals_that_the_builder_holds_back_end_commands_all_the_same(root: Path) -> None:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    try:
        with pytest.raises(SetupFailed, match="was killed by signal 15"):
            capture(setup_of(root, "kill -TERM $$; sleep 600", way="scan"))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


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
    assert split_whiteouts(str(upper), partial(stage.names_in, str(lower))) == (["d/a", "d/sub/b"], [])


def test_roots_and_the_work_are_not_outside(tmp_path: Path) -> None:
    assert outside.watchable([Root(folder="0", path=str(tmp_path / "usr/env"))], [str(tmp_path)]) == [str(tmp_path)]
    assert outside.watchable([Root(folder="0", path=str(tmp_path))], [str(tmp_path)]) == []


def test_what_no_worker_needs_of_an_image_goes_and_nothing_that_a_link_leads_to(tmp_path: Path) -> None:
    written, outside = tmp_path / "written", tmp_path / "outside"
    for folder in (written / "run/x", written / "cache/pip", written / "kept", outside / "tmp"):
        folder.mkdir(parents=True)
    (written / "var").symlink_to(outside)
    (written / "linked").symlink_to(outside)
    drop_passing(str(written), ["run", "var/tmp", "/cache/pip", "/linked", "/", "/../outside", "nowhere"])
    assert sorted(path.name for path in written.iterdir()) == ["cache", "kept", "linked", "var"]
    assert (outside / "tmp").is_dir()
