"""HDFS: a real NameNode and three DataNodes, one of which is killed while we write and while we read."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
from servers.hdfs import MiniHdfs, running_hdfs

from robust_run.store import hdfs_writing
from robust_run.store.cancelling import Cancellation
from robust_run.store.engine import transfer
from robust_run.store.errors import (
    AccessDenied,
    AlreadyExists,
    BadPath,
    Cancelled,
    NoSpace,
    NotFound,
    ShortRead,
    Stalled,
    StoreError,
    TooLarge,
    Unavailable,
)
from robust_run.store.hdfs import from_hdfs
from robust_run.store.jobs import ReadJob
from robust_run.store.opening import open_store
from robust_run.store.types import Store, StoreOptions

CONTENT = random.Random(3).randbytes(5 << 20)
#: A busy machine is no dead NameNode.
PATIENT = StoreOptions(stall_s=60)
#: The first test downloads Hadoop and starts four Java processes.
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniHdfs]:
    pytest.importorskip("hdfs_native")
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def store(hdfs: MiniHdfs, request: pytest.FixtureRequest) -> Iterator[Store]:
    found = open_store(f"{hdfs.url}/{request.node.name}", PATIENT)
    yield found
    found.close()


@pytest.fixture
def untiring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three DataNodes one is dead, and two are chosen by lot each time: no number of attempts is enough for certain."""
    monkeypatch.setattr(hdfs_writing, "_PATIENCE", 500)


def write(store: Store, path: str, content: bytes) -> None:
    writer = store.create(path, len(content))
    half = len(content) // 2
    writer.write_at(0, [memoryview(content)[:half]])
    writer.write_at(half, [memoryview(content)[half:]])
    writer.finish()


def read(store: Store, path: str, offset_bytes: int, length: int) -> bytes:
    buffer = bytearray(length)
    view = memoryview(buffer)
    store.read_into(path, offset_bytes, [view[: length // 3], view[length // 3 :]])
    return bytes(buffer)


def test_what_is_written_in_order_is_read_back_in_ranges(store: Store) -> None:
    write(store, "a/b/f", CONTENT)
    assert store.size_bytes("a/b/f") == len(CONTENT)
    assert read(store, "a/b/f", 12345, 3 << 20) == CONTENT[12345 : 12345 + (3 << 20)]
    assert store.read_all("a/b/f", len(CONTENT)) == CONTENT
    buffer = memoryview(bytearray(len(CONTENT)))
    step = 300_000
    transfer(
        [ReadJob(store, "a/b/f", at, [buffer[at : at + step]]) for at in range(0, len(CONTENT), step)],
        threads=store.threads,
    )
    assert buffer == CONTENT
    store.read_into("a/b/f", 0, [])


def test_a_file_is_not_seen_before_it_is_finished_and_nothing_is_left_of_one_that_is_aborted(store: Store) -> None:
    store.write_all("f", b"old")
    writer = store.create("f")
    assert not writer.any_order
    writer.write_at(0, [memoryview(CONTENT)])
    assert store.read_all("f", 3) == b"old"
    writer.abort()
    writer.abort()
    assert [entry.name for entry in store.list()] == ["f"]
    write(store, "f", CONTENT)
    assert store.size_bytes("f") == len(CONTENT)
    write(store, "empty", b"")
    assert store.read_all("empty", 0) == b""


def test_pieces_must_come_in_order_and_be_all(store: Store) -> None:
    writer = store.create("f", 10)
    with pytest.raises(StoreError, match="grow at their end, 0, not at 5"):
        writer.write_at(5, [memoryview(b"x")])
    writer.write_at(0, [memoryview(b"12345")])
    with pytest.raises(StoreError, match="5 bytes were written of 10"):
        writer.finish()
    writer.abort()
    with pytest.raises(StoreError, match="not being written"):
        writer.write_at(5, [memoryview(b"x")])


def test_small_files_are_replaced_or_not(store: Store) -> None:
    store.write_all("f", b"one")
    store.write_all("f", b"two")
    with pytest.raises(AlreadyExists):
        store.write_all("f", b"three", replace=False)
    store.write_all("g", b"new", replace=False)
    assert store.read_all("f", 3) == b"two"
    assert [(entry.name, entry.size_bytes, entry.is_folder) for entry in store.list()] == [
        ("f", 3, False),
        ("g", 3, False),
    ]


def test_what_is_not_there_too_short_or_too_long(store: Store) -> None:
    store.write_all("folder/f", b"12345")
    with pytest.raises(ShortRead, match="10 bytes were asked for at offset 2, 3 are there"):
        read(store, "folder/f", 2, 10)
    with pytest.raises(ShortRead, match="0 are there"):
        read(store, "folder/f", 20, 10)
    with pytest.raises(TooLarge):
        store.read_all("folder/f", 4)
    missing: list[Callable[[], object]] = [
        lambda: read(store, "none", 0, 1), lambda: store.list("none"), lambda: store.size_bytes("folder"),
        lambda: read(store, "folder", 0, 1), lambda: store.list("folder/f"),
    ]  # fmt: skip
    for call in missing:
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotFound, match="a file is where a folder"):
        store.write_all("folder/f/g", b"x")
    with pytest.raises(AlreadyExists, match="is a folder"):
        store.create("folder")
    with pytest.raises(BadPath):
        store.read_all("../f", 1)
    store.remove("none")
    store.remove("folder")
    with pytest.raises(NotFound):
        store.list("folder")


def test_a_replaced_file_is_read_anew_once_its_size_was_asked_for(store: Store) -> None:
    write(store, "f", CONTENT[:1000])
    assert read(store, "f", 0, 1000) == CONTENT[:1000]
    write(store, "f", CONTENT[1000:3000])
    assert store.size_bytes("f") == 2000
    assert read(store, "f", 0, 2000) == CONTENT[1000:3000]


# DataNodes that die. The NameNode goes on offering them for ten minutes.


def test_a_datanode_that_dies_while_a_file_is_written_costs_nothing(
    hdfs: MiniHdfs, store: Store, untiring: None
) -> None:
    writer = store.create("f", len(CONTENT))
    writer.write_at(0, [memoryview(CONTENT)[:100_000]])
    hdfs.kill_datanode(1)
    try:
        writer.write_at(100_000, [memoryview(CONTENT)[100_000:]])
        writer.finish()
        store.write_all("small", b"after")
        assert store.read_all("f", len(CONTENT)) == CONTENT
        assert store.read_all("small", 5) == b"after"
        assert sorted(entry.name for entry in store.list()) == ["f", "small"]
    finally:
        hdfs.restart_datanode(1)


def test_a_long_file_that_a_datanode_breaks_off_can_be_begun_again(
    hdfs: MiniHdfs, store: Store, request: pytest.FixtureRequest
) -> None:
    options = StoreOptions(extra={"dfs.replication": "1", "dfs.blocksize": str(1 << 20)})
    long = open_store(f"{hdfs.url}/long", options)
    content = CONTENT * 5

    def write_on_until_it_breaks() -> None:
        writer = long.create("f")
        try:
            for at in range(0, 100 * len(content), len(content)):
                writer.write_at(at, [memoryview(content)])
        finally:
            writer.abort()

    hdfs.kill_datanode(2)
    try:
        with pytest.raises(Unavailable, match="begin this file again"):
            write_on_until_it_breaks()
        assert long.list() == []
        request.getfixturevalue("untiring")
        write(store, "f", CONTENT)
        assert store.read_all("f", len(CONTENT)) == CONTENT
    finally:
        hdfs.restart_datanode(2)
        long.close()


def test_a_datanode_that_dies_while_a_file_is_read_costs_nothing(hdfs: MiniHdfs, store: Store) -> None:
    write(store, "f", CONTENT)
    buffer = memoryview(bytearray(len(CONTENT)))
    step, killed = 100_000, threading.Event()

    def jobs() -> Iterator[ReadJob]:
        for number, at in enumerate(range(0, len(CONTENT), step)):
            if number == 10:
                hdfs.kill_datanode(3)
                killed.set()
            yield ReadJob(store, "f", at, [buffer[at : at + step]])

    try:
        transfer(jobs(), threads=4)
        assert killed.is_set()
        assert buffer == CONTENT
    finally:
        hdfs.restart_datanode(3)


def test_a_namenode_that_hangs_is_given_up_and_comes_back(hdfs: MiniHdfs) -> None:
    store = open_store(f"{hdfs.url}/hung", StoreOptions(stall_s=0.5))
    steady = open_store(f"{hdfs.url}/hung", PATIENT)
    steady.write_all("f", b"12345")
    process = hdfs.process("namenode")
    process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(Stalled, match=r"nothing moved for 0\.5 s"):
            store.size_bytes("f")
        cancel = Cancellation()
        cancel.cancel()
        with pytest.raises(Cancelled):
            steady.read_into("f", 0, [memoryview(bytearray(5))], cancel)
    finally:
        process.send_signal(signal.SIGCONT)
    assert steady.read_all("f", 5) == b"12345"
    store.close()
    steady.close()


# Without a cluster


def test_where_no_namenode_is_it_says_so_in_the_time_of_a_stall() -> None:
    pytest.importorskip("hdfs_native")
    # A port that nobody is given: hdfs-native goes on asking there for minutes, whatever other test has the port by then.
    store = open_store("hdfs://127.0.0.1:1/x", StoreOptions(stall_s=0.3))
    with pytest.raises(Unavailable, match=r"hdfs://127\.0\.0\.1:1/x/f: "):
        store.size_bytes("f")
    store.close()


@pytest.mark.parametrize(
    ("error", "ours", "words"),
    [
        (RuntimeError('RPCError("x.AccessControlException", "denied: u\\n\\tat x")'), AccessDenied, "denied: u"),
        (RuntimeError("RPCError: DSQuotaExceededException: the quota is 5"), NoSpace, "quota is 5"),
        (RuntimeError("File /f could only be replicated to 0 nodes instead of 1"), NoSpace, "full"),
        (OSError("Connection refused (os error 111)"), Unavailable, "refused"),
        (FileExistsError("f\n\tat org.apache"), AlreadyExists, "exists"),
        (BaseException("a panic"), StoreError, "gave up: a panic"),
    ],
)  # fmt: skip
def test_what_hdfs_native_raises(error: BaseException, ours: type[StoreError], words: str) -> None:
    found = from_hdfs(error, "hdfs://nn", "f")
    assert type(found) is ours
    assert words in str(found)
    assert "\tat" not in str(found)
