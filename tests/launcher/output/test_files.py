"""Log files: nobody waits for the disk, and what it did not take is said in the file and once aloud."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from robust_run.launcher.agent.output.files import FileSink


class Errors:
    """What the sink said aloud."""

    def __init__(self) -> None:
        self.said: list[tuple[str, int | None]] = []

    def __call__(self, path: str, error: OSError) -> None:
        self.said.append((path, error.errno))


class Disk:
    """A disk that can be full or hang. Counts the writes it refused."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.turns = threading.Event()
        self.turns.set()

    def write(self, fd: int, data: memoryview) -> int:
        self.turns.wait()
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        return os.write(fd, data)


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_files_and_their_folders_are_made_and_filled_in_order(tmp_path: Path, errors: Errors) -> None:
    sink = FileSink(errors)
    paths = [tmp_path / "run" / "attempt_0" / str(rank) / "stdout.log" for rank in range(4)]
    handles = [sink.open(str(path)) for path in paths]
    for number in range(500):
        for handle in handles:
            assert sink.write(handle, b"%d\n" % number)
    assert sink.flush(30)
    expected = b"".join(b"%d\n" % number for number in range(500))
    assert [path.read_bytes() for path in paths] == [expected] * 4
    assert sink.stop(30)
    assert errors.said == []


def test_a_file_exists_even_if_nothing_is_printed(tmp_path: Path, errors: Errors) -> None:
    sink = FileSink(errors)
    sink.open(str(tmp_path / "0" / "stderr.log"))
    sink.start()
    assert sink.flush(30)
    assert (tmp_path / "0" / "stderr.log").read_bytes() == b""
    assert sink.stop(30)


def test_an_existing_file_is_continued(tmp_path: Path, errors: Errors) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    sink = FileSink(errors)
    sink.write(sink.open(str(path)), b"after\n")
    assert sink.stop(30)
    assert path.read_bytes() == b"before\nafter\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_after_a_failure_writing_goes_on_and_the_file_says_what_is_missing(
    tmp_path: Path, errors: Errors, disk: Disk, code: int
) -> None:
    sink = FileSink(errors, write=disk.write)
    paths = [tmp_path / "a", tmp_path / "b"]
    handles = [sink.open(str(path)) for path in paths]
    for handle in handles:
        sink.write(handle, b"first\n")
    assert sink.flush(30)
    disk.error = code
    for handle in handles:
        sink.write(handle, b"lost\n")
        sink.write(handle, b"lost too\n")
    assert sink.flush(30), "a full disk is given up on, not waited for"
    disk.error = None
    sink.write(handles[0], b"last\n")
    assert sink.stop(30)
    notice = f"robust-run: 2 lines (14 bytes) are missing here because they could not be written: {os.strerror(code)}\n"
    assert paths[0].read_text() == f"first\n{notice}last\n"
    assert paths[1].read_text() == f"first\n{notice}", "said at the latest when the file is closed"
    assert errors.said == [(str(paths[0]), code)], "said once per job"


def test_a_block_that_was_written_in_part_is_counted_in_part(tmp_path: Path, errors: Errors) -> None:
    room = 8

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = os.write(fd, data[:room])
        room -= count
        return count

    sink = FileSink(errors, write=write)
    handle = sink.open(str(tmp_path / "log"))
    sink.write(handle, b"line 1\nline 2\nline 3\n")
    assert sink.flush(30)
    room = 10_000
    sink.write(handle, b"line 4\n")
    assert sink.stop(30)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[:2] == ["line 1", "l"]
    assert lines[2].startswith("robust-run: 2 lines (13 bytes) are missing here")
    assert lines[3:] == ["line 4"]


def test_a_disk_that_hangs_stops_nobody(tmp_path: Path, errors: Errors, disk: Disk) -> None:
    sink = FileSink(errors, limit_bytes=1000, write=disk.write)
    path = tmp_path / "log"
    handle = sink.open(str(path))
    disk.turns.clear()
    taken = [sink.write(handle, b"%04d....\n" % number) for number in range(500)]
    assert taken == [True] * 111 + [False] * 389
    assert not sink.flush(0.01)
    assert errors.said == [(str(path), errno.ENOBUFS)], "said once"
    disk.turns.set()
    assert sink.flush(30)
    assert sink.write(handle, b"again\n")
    assert sink.stop(30)
    lines = path.read_text().splitlines()
    assert lines[:111] == [f"{number:04}...." for number in range(111)]
    assert lines[111].startswith("robust-run: 389 lines (3.5 kB) are missing here because the disk was too slow")
    assert lines[112:] == ["again"]


def test_stopping_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, errors: Errors, disk: Disk) -> None:
    sink = FileSink(errors, write=disk.write)
    handle = sink.open(str(tmp_path / "log"))
    disk.turns.clear()
    sink.write(handle, b"stuck\n")
    assert not sink.stop(0.01)
    disk.turns.set()
    assert sink.stop(30)
    assert (tmp_path / "log").read_bytes() == b"stuck\n"


def test_a_file_that_cannot_be_made_is_said_and_tried_again(tmp_path: Path, errors: Errors) -> None:
    blocker = tmp_path / "folder"
    blocker.write_text("a file where a folder should be")
    sink = FileSink(errors)
    path = blocker / "log"
    handle = sink.open(str(path))
    sink.write(handle, b"lost\n")
    assert sink.flush(30)
    assert errors.said == [(str(path), errno.ENOTDIR)]
    blocker.unlink()
    sink.write(handle, b"kept\n")
    assert sink.stop(30)
    assert path.read_text().splitlines() == [
        "robust-run: 1 line (5 bytes) is missing here because they could not be written: Not a directory",
        "kept",
    ]


def test_what_comes_after_closing_is_ignored(tmp_path: Path, errors: Errors) -> None:
    sink = FileSink(errors)
    handle = sink.open(str(tmp_path / "log"))
    sink.write(handle, b"before\n")
    sink.close(handle)
    sink.write(handle, b"after\n")
    assert sink.stop(30)
    assert (tmp_path / "log").read_bytes() == b"before\n"


def test_no_descriptor_is_left_open(tmp_path: Path, errors: Errors) -> None:
    def open_files() -> int:
        count = 0
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # that of the list itself
                count += os.readlink(f"/proc/self/fd/{number}").startswith(str(tmp_path))
        return count

    sink = FileSink(errors)
    for number in range(20):
        sink.write(sink.open(str(tmp_path / str(number))), b"x")
    assert sink.flush(30)
    assert open_files() == 20
    assert sink.stop(30)
    assert open_files() == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small tmpfs: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_real_disk_that_is_full_and_then_is_not(small_disk: Path, errors: Errors) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"." * 40_000)
    sink = FileSink(errors)
    path = small_disk / "log"
    handle = sink.open(str(path))
    line = b"x" * 99 + b"\n"
    for _ in range(100):
        sink.write(handle, line * 10)
    assert sink.flush(30)
    assert errors.said == [(str(path), errno.ENOSPC)]
    kept_bytes = path.stat().st_size
    ballast.unlink()
    sink.write(handle, b"there is room again\n")
    assert sink.stop(30)
    text = path.read_bytes()
    notice, last = text[kept_bytes:].splitlines()[-2:]
    assert last == b"there is room again"
    assert b"(%.1f kB) are missing here" % ((100_000 - kept_bytes) / 1000) in notice
    assert b"No space left on device" in notice
