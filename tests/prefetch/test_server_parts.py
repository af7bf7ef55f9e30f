"""The parts of the block server that need no process: the kernel's protocol, the shared memory, the control socket, the guard."""

from __future__ import annotations

import errno
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.prefetch.errors import ControlFailed
from robust_run.prefetch.rules.guard import MOST_DEATHS, restart_after_s
from robust_run.prefetch.rules.types import QUANTUM_BYTES, BlockMap, BlockRun, Touch
from robust_run.prefetch.server import control, handle, protocol, shared
from robust_run.prefetch.server.config import ServeOptions, ServerConfig
from robust_run.prefetch.server.keeping import Keeper

MIB = 1 << 20
ANSWERS = protocol.Answers(5 * MIB, 0, 0, 128 << 10)


def asked(operation: int, node: int, body: bytes = b"") -> protocol.Request:
    head = struct.pack("=IIQQIIIHH", 40 + len(body), operation, 7, node, 0, 0, 0, 0, 0)
    found = protocol.request(memoryview(head + body + bytes(100)))
    assert found is not None
    return found


def test_only_one_name_is_in_the_folder() -> None:
    assert ANSWERS.answer(asked(protocol.LOOKUP, 1, b"image\0"))[1] == 0
    for node, name in ((1, b"other\0"), (2, b"image\0"), (1, b"..\0"), (1, b"image2\0")):
        assert ANSWERS.answer(asked(protocol.LOOKUP, node, name)) == (b"", errno.ENOENT)


def test_the_kernel_is_kept_from_reading_ahead() -> None:
    body, error = ANSWERS.answer(asked(protocol.INIT, 0, struct.pack("=IIII", 7, 45, 8 * MIB, 0xFFFFFFFF)))
    assert error == 0
    major, minor, readahead, flags = struct.unpack_from("=IIII", body)
    assert (len(body), major, minor, readahead) == (64, 7, 31, 128 << 10)
    assert flags == (1 | 1 << 22)


def test_what_would_change_the_file_is_not_known() -> None:
    for operation in (4, 6, 8, 9, 10, 11, 12, 16, 21, 35, 43, 45):
        assert ANSWERS.answer(asked(operation, 2, bytes(80))) == (b"", errno.ENOSYS)


@given(st.binary(max_size=200))
def test_no_request_crashes_the_protocol(data: bytes) -> None:
    found = protocol.request(memoryview(data))
    if found is not None and found.operation not in protocol.SILENT:
        body, error = ANSWERS.answer(found)
        assert len(protocol.head(found.unique, len(body), error)) == 16


@pytest.fixture(name="memory")
def _memory() -> Iterator[int]:
    descriptor = shared.create(10 * MIB)
    yield descriptor
    os.close(descriptor)


def test_touches_outlive_the_server_that_saw_them(memory: int) -> None:
    shared.Shared(memory).touch(QUANTUM_BYTES - 1, 2)
    other = shared.Shared(memory)
    assert [touch.quantum for touch in other.touches()] == [0, 1]
    assert all(0 <= touch.first_ms < 60_000 for touch in other.touches())


def test_a_closed_window_records_nothing_more(memory: int) -> None:
    ours, keepers = shared.Shared(memory), shared.Shared(memory)
    ours.touch(0, 10)
    keepers.close_window()
    length_s = ours.window_s
    ours.touch(5 * MIB, 10)
    keepers.close_window()
    assert [touch.quantum for touch in ours.touches()] == [0]
    assert (ours.window_open, ours.window_s) == (False, length_s)


def test_touches_beyond_the_image_are_left_out(memory: int) -> None:
    ours = shared.Shared(memory)
    ours.touch(10 * MIB - 1, 5 * MIB)
    ours.touch(1 << 62, 1 << 20)
    assert [touch.quantum for touch in ours.touches()] == [79]


def test_a_request_stays_until_it_was_answered(memory: int) -> None:
    first = shared.Shared(memory)
    for index in (3, 5):
        first.slot(index)[:4] = struct.pack("<I", 40)
    first.free(3)
    assert shared.Shared(memory).unanswered() == [5]


def test_what_a_server_was_told_last_is_known_to_the_next(memory: int) -> None:
    assert shared.Shared(memory).told() == b""
    for told in (b"first", b"a longer second", b"3rd", b""):
        shared.Shared(memory).tell(told)
        assert shared.Shared(memory).told() == told
    shared.Shared(memory).tell(b"kept")
    with pytest.raises(ValueError, match="at most"):
        shared.Shared(memory).tell(bytes(shared.MOST_TOLD_BYTES + 1))
    assert shared.Shared(memory).told() == b"kept"


def test_other_memory_is_refused() -> None:
    descriptor = os.memfd_create("other")
    try:
        for size in (0, 5000, 3 * MIB):
            os.ftruncate(descriptor, size)
            with pytest.raises(ValueError, match="not the shared memory"):
                shared.Shared(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture(name="listening")
def _listening(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    path = str(deep / "server.sock")
    with control.listen(path) as listening:
        yield path, listening
        listening.shutdown(socket.SHUT_RDWR)


def test_a_server_that_starts_keeps_its_socket_while_another_one_removes_those_of_the_dead(tmp_path: Path) -> None:
    """Jobs of one node start at the same moment."""
    folder = tmp_path / "control"
    is_over = threading.Event()

    def others_start() -> None:
        while not is_over.is_set():
            handle._new_control_path(str(tmp_path))

    folder.mkdir()
    other = threading.Thread(target=others_start)
    other.start()
    lost = []
    try:
        for number in range(300):
            with control.listen(str(folder / f"{number}.sock")):
                lost += [number] * (not (folder / f"{number}.sock").exists())
    finally:
        is_over.set()
        other.join()
    assert lost == []
    handle._new_control_path(str(tmp_path))
    assert list(folder.iterdir()) == []


def test_a_socket_that_somebody_listens_at_is_not_taken_over(listening: tuple[str, socket.socket]) -> None:
    path, _ = listening
    with pytest.raises(FileExistsError):
        control.listen(path)
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_where_the_file_system_knows_no_links_a_socket_has_its_name_all_the_same(tmp_path: Path) -> None:
    def refuses(_new: str, _path: str) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    path = str(tmp_path / "control.sock")
    with control.listen(path, refuses), socket.socket(socket.AF_UNIX) as other:
        other.connect(path)
        with pytest.raises(PermissionError):
            control.listen(path, refuses)
        assert os.listdir(tmp_path) == ["control.sock"]


def test_a_request_and_its_answer_however_long_the_path(listening: tuple[str, socket.socket]) -> None:
    path, server = listening
    seen: list[control.Request] = []

    def carry_out(request: control.Request) -> object:
        seen.append(request)
        return control.Touches((Touch(1, 2),), 3.0)

    control.Control(server, carry_out).start()
    assert control.ask(path, control.AskTouches(), control.Touches) == control.Touches((Touch(1, 2),), 3.0)
    assert control.ask(path, control.AskPrefetch((BlockRun(1, 2, 3),)), control.Touches).window_s == 3.0
    assert seen == [control.AskTouches(), control.AskPrefetch((BlockRun(1, 2, 3),))]
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_request_that_fails_or_is_none_is_refused_in_words(listening: tuple[str, socket.socket]) -> None:
    path, server = listening
    control.Control(server, lambda _request: 1 // 0).start()
    with pytest.raises(ControlFailed, match="ZeroDivisionError"):
        control.ask(path, control.AskStop(), control.Done)
    with socket.socket(socket.AF_UNIX) as client, control.short(path) as address:
        client.settimeout(60)
        client.connect(address)
        for line in (b"nonsense\n", b'{"type":"unknown"}\n', b"[" * 50_000 + b"\n"):
            client.sendall(line)
            assert client.recv(65536).startswith(b'{"type":"refused","reason":"the request cannot be understood')


def test_a_server_that_is_silent_or_not_there_is_said(listening: tuple[str, socket.socket]) -> None:
    path, _server = listening
    with pytest.raises(ControlFailed, match="timed out"):
        control.ask(path, control.AskStatus(), control.Done, limit_s=0.05)
    with pytest.raises(ControlFailed, match="No such file"):
        control.ask(f"{path}.gone", control.AskStatus(), control.Done)


def test_what_a_server_says_is_left_to_the_thread_that_reads_it_though_it_is_killed(tmp_path: Path) -> None:
    block_map = BlockMap(size_bytes=MIB, sha256="0" * 64, digests=bytes(16))
    config = ServerConfig(
        image_url="x", block_map=block_map, cache_root="", mount_folder=str(tmp_path), device=-1, shared=-1, control=-1,
        mounted=-1, options=ServeOptions(), hot=(),
    )  # fmt: skip
    keeper = Keeper(config, str(tmp_path / "server.sock.log"), -1, lambda: None, *[lambda _: None] * 3)
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        keeper._process = process
        keeper.stop(0.0)
        assert process.wait(60) == -9
        assert process.stdout.read() == b""


def test_a_server_that_dies_now_and_then_is_replaced_and_one_that_always_dies_is_given_up() -> None:
    assert restart_after_s([100.0], 100.0) == 0.0
    assert restart_after_s([0.0, 1000.0], 1000.0) == 0.0
    row = [
        restart_after_s([100.0 + number for number in range(count)], 100.0 + count)
        for count in range(1, MOST_DEATHS + 1)
    ]
    assert row == [0.0, 0.25, 0.5, 1.0, None]


def test_a_machine_without_descriptors_is_not_asked_for_one_in_a_circle() -> None:
    pauses: list[float] = []
    ended = threading.Event()

    class Full(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            if len(pauses) == 3:
                self.close()
                ended.set()
            raise OSError(errno.EMFILE, "Too many open files")

    control.Control(Full(socket.AF_UNIX), lambda request: request, pause=pauses.append).start()
    assert ended.wait(10)
    assert pauses == [control._REFUSED_PAUSE_S] * 3
