"""Local files: filled buffers, files that appear whole, and what is said when that cannot be."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import UserError
from robust_run.store.cancelling import Cancellation
from robust_run.store.errors import (
    AlreadyExists,
    BadPath,
    Cancelled,
    NotFound,
    ShortRead,
    StoreError,
    TooLarge,
)
from robust_run.store.local import LocalStore
from robust_run.store.opening import open_store
from robust_run.store.types import Store

CONTENT = random.Random(1).randbytes(300_000)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# Reading


@given(offset=st.integers(0, 1000), lengths=st.lists(st.integers(0, 400), max_size=20))
def test_any_split_of_a_range_over_buffers_is_filled(
    tmp_path_factory: pytest.TempPathFactory, offset: int, lengths: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp() / "splits"
    folder.mkdir(exist_ok=True)
    if not (folder / "f").exists():
        (folder / "f").write_bytes(CONTENT[:9000])
    buffers = [memoryview(bytearray(length)) for length in lengths]
    open_store(str(folder)).read_into("f", offset, buffers)
    assert b"".join(buffers) == CONTENT[offset : offset + sum(lengths)]


def test_more_buffers_than_one_system_call_takes(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    buffer = bytearray(30_000)
    store.read_into("f", 7, [memoryview(buffer)[at : at + 10] for at in range(0, 30_000, 10)])
    assert buffer == CONTENT[7:30_007]


def test_buffers_of_other_types_are_filled_as_bytes(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    words = memoryview(bytearray(800)).cast("d")
    store.read_into("f", 0, [words])
    assert words.tobytes() == CONTENT[:800]
    with pytest.raises(ValueError, match="read-only"):
        store.read_into("f", 0, [memoryview(b"constant")])


def test_a_file_that_is_too_short_says_how_short(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    with pytest.raises(ShortRead, match="10 bytes were asked for at offset 2, 3 are there") as short:
        store.read_into("f", 2, [memoryview(bytearray(10))])
    error = short.value
    assert (error.path, error.offset_bytes, error.expected_bytes, error.got_bytes) == ("f", 2, 10, 3)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_whole_files_and_their_limit(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    assert store.read_all("f", 5) == b"12345"
    assert store.size_bytes("f") == 5
    with pytest.raises(TooLarge, match="has 5 bytes: at most 4"):
        store.read_all("f", 4)


def test_what_is_no_file_is_never_read(tmp_path: Path, store: Store) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for path, error in (("none", NotFound), ("folder", NotFound), ("pipe", StoreError), ("zeros", StoreError)):
        with pytest.raises(error, match=path):
            store.read_all(path, 10)
        with pytest.raises(error):
            store.size_bytes(path)
    for path in ("../f", "/etc/passwd", ""):
        with pytest.raises(BadPath):
            store.read_all(path, 10)


def test_a_read_that_is_called_off_reads_nothing(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    cancel, buffer = Cancellation(), bytearray(10)
    cancel.cancel()
    with pytest.raises(Cancelled):
        store.read_into("f", 0, [memoryview(buffer)], cancel)
    assert buffer == bytes(10)


def test_an_empty_folder_is_not_a_missing_one(tmp_path: Path, store: Store) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "f").write_bytes(b"123")
    (tmp_path / "folder" / "broken").symlink_to("nowhere")
    (tmp_path / "folder" / os.fsdecode(b"\xff")).write_bytes(b"")
    assert [(entry.name, entry.size_bytes, entry.is_folder) for entry in store.list("folder")] == [
        ("f", 3, False),
        ("inner", 0, True),
    ]
    assert store.list("folder/inner") == []
    assert [entry.name for entry in store.list()] == ["folder"]
    with pytest.raises(NotFound):
        store.list("none")
    with pytest.raises(NotFound):
        store.list("folder/f")


# Writing


def test_pieces_in_any_order_from_many_threads_make_a_file(tmp_path: Path, store: Store) -> None:
    writer = store.create("deep/er/f", len(CONTENT))
    assert writer.any_order
    pieces = [(at, memoryview(CONTENT)[at : at + 1000]) for at in range(0, len(CONTENT), 1000)]
    random.Random(2).shuffle(pieces)

    def write(mine: list[tuple[int, memoryview]]) -> None:
        for at, piece in mine:
            writer.write_at(at, [piece[:300], piece[300:]])

    threads = [threading.Thread(target=write, args=(pieces[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    writer.finish()
    assert (tmp_path / "deep/er/f").read_bytes() == CONTENT
    assert names(tmp_path / "deep/er") == ["f"]


def test_a_file_is_not_seen_before_it_is_finished(tmp_path: Path, store: Store) -> None:
    (tmp_path / "f").write_bytes(b"old")
    writer = store.create("f", 10)
    writer.write_at(0, [memoryview(b"new")])
    assert (tmp_path / "f").read_bytes() == b"old"
    writer.finish()
    assert (tmp_path / "f").read_bytes() == b"new" + bytes(7)
    writer.abort()
    assert (tmp_path / "f").exists()


def test_what_is_aborted_leaves_nothing(tmp_path: Path, store: Store) -> None:
    writer = store.create("folder/f")
    writer.write_at(0, [memoryview(CONTENT)])
    writer.abort()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    with pytest.raises(StoreError):
        writer.finish()


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="no files without names")
def test_what_is_not_finished_leaves_no_folder(tmp_path: Path) -> None:
    """Of who is killed, nothing is left where the file system keeps files without names."""
    writer = open_store(str(tmp_path)).create("folder/below/f")
    if writer._name is not None:  # type: ignore[attr-defined]
        pytest.skip("this file system has no files without names")
    writer.write_at(0, [memoryview(CONTENT)])
    assert os.listdir(tmp_path) == []
    (tmp_path / "folder").mkdir()  # somebody else's, who goes again
    (tmp_path / "folder").rmdir()
    writer.finish()
    assert (tmp_path / "folder" / "below" / "f").read_bytes() == CONTENT


def test_more_than_was_announced_is_refused(store: Store) -> None:
    writer = store.create("f", 10)
    with pytest.raises(StoreError, match="end at 11, after its 10 bytes"):
        writer.write_at(1, [memoryview(CONTENT)[:10]])
    writer.abort()


class NamedStore(LocalStore):
    """As on file systems that have no O_TMPFILE: the writer uses a name of its own."""

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True):  # type: ignore[no-untyped-def]
        writer = super().create(path, size_bytes, durable=durable)
        os.close(writer._descriptor)
        writer._open_named()
        return writer


def test_without_o_tmpfile_it_is_the_same(tmp_path: Path) -> None:
    from robust_run.store.types import StoreOptions

    store = NamedStore(str(tmp_path), StoreOptions())
    writer = store.create("f")
    assert [name.startswith(".robust-") for name in names(tmp_path)] == [True]
    writer.write_at(0, [memoryview(b"whole")])
    writer.finish()
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == {"f": b"whole"}
    store.create("g").abort()
    assert names(tmp_path) == ["f"]
    refusing = store.create("f")
    refusing._replace = False
    with pytest.raises(AlreadyExists):
        refusing.finish()
    refusing.abort()
    assert names(tmp_path) == ["f"]


def test_a_small_file_is_replaced_or_not(tmp_path: Path, store: Store) -> None:
    store.write_all("a/f", b"one")
    store.write_all("a/f", b"two")
    with pytest.raises(AlreadyExists):
        store.write_all("a/f", b"three", replace=False)
    store.write_all("a/g", b"first", replace=False, durable=False)
    assert {name: (tmp_path / "a" / name).read_bytes() for name in names(tmp_path / "a")} == {
        "f": b"two",
        "g": b"first",
    }


def test_only_one_of_many_makes_a_file_that_must_not_be_there(store: Store) -> None:
    won = []

    def try_it(number: int) -> None:
        try:
            store.write_all("f", str(number).encode(), replace=False)
            won.append(number)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=try_it, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert store.read_all("f", 10) == str(won[0]).encode()
    assert len(won) == 1


def test_a_link_is_replaced_and_removed_itself(tmp_path: Path, store: Store) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "f").write_bytes(b"keep")
    inside = open_store(str(tmp_path / "inside"))
    inside.write_all("x", b"")
    (tmp_path / "inside" / "f").symlink_to(tmp_path / "outside" / "f")
    (tmp_path / "inside" / "folder").symlink_to(tmp_path / "outside")
    assert inside.read_all("f", 10) == b"keep"
    inside.write_all("f", b"new")
    inside.remove("folder")
    assert names(tmp_path / "inside") == ["f", "x"]
    assert (tmp_path / "outside" / "f").read_bytes() == b"keep"


def test_a_list_says_what_is_a_link_and_nothing_behind_one_is_removed(tmp_path: Path) -> None:
    (tmp_path / "outside" / "folder").mkdir(parents=True)
    (tmp_path / "outside" / "folder" / "f").write_bytes(b"keep")
    inside = open_store(str(tmp_path / "inside"))
    inside.write_all("own/f", b"")
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    assert {entry.name: (entry.is_folder, entry.is_link) for entry in inside.list()} == {
        "own": (True, False),
        "link": (True, True),
    }
    for path in ("link/folder", "link/folder/f"):
        with pytest.raises(StoreError, match="inside/link is a link"):
            inside.remove(path)
    assert (tmp_path / "outside" / "folder" / "f").read_bytes() == b"keep"


def test_a_root_that_is_a_link_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "real")
    store = open_store(str(tmp_path / "root"))
    store.write_all("a/b", b"")
    store.remove("a")
    assert names(tmp_path / "real") == []


def test_removing(tmp_path: Path, store: Store) -> None:
    store.write_all("a/b/c", b"")
    store.write_all("a/d", b"")
    store.remove("a/d")
    store.remove("a")
    store.remove("a")
    store.remove("a/b/c")
    assert names(tmp_path) == []


def test_a_name_that_is_taken_by_the_other_kind(tmp_path: Path, store: Store) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(AlreadyExists, match="is a folder"):
        store.create("folder")
    with pytest.raises(NotFound, match="a file is where a folder"):
        store.write_all("f/g", b"")


DIES_WHILE_WRITING = """
import os, sys, signal
from robust_run.store.opening import open_store
writer = open_store(sys.argv[1]).create("f")
writer.write_at(0, [memoryview(bytes(1 << 20))])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", DIES_WHILE_WRITING, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == -9
    assert all(name.startswith(".robust-") for name in names(tmp_path))
    assert names(tmp_path) == [] or not _has_tmpfile(tmp_path)


def _has_tmpfile(folder: Path) -> bool:
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        return False
    return True


# Opening


def test_plain_paths_and_file_urls_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b").mkdir()
    monkeypatch.chdir(tmp_path)
    for url in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b/", f"{tmp_path}/a b", "a b"):
        assert open_store(url).url == f"{tmp_path}/a b"


@pytest.mark.parametrize("url", ["", "file://host/x", "file://", "rrck:///x", "a\0b"])
def test_what_is_no_folder_is_refused(url: str) -> None:
    with pytest.raises(UserError):
        open_store(url)


def test_everything_below_a_folder_is_told_and_no_link_is_followed(tmp_path: Path, store: Store) -> None:
    (tmp_path / "a" / "deep" / "empty").mkdir(parents=True)
    (tmp_path / "a" / "x").write_bytes(b"123")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "gone").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"no\xfftext")).write_bytes(b"1")
    found = {each.path: (each.kind, each.size_bytes, each.target) for each in store.walk()}
    assert found == {
        "a": ("folder", 0, ""),
        "a/deep": ("folder", 0, ""),
        "a/deep/empty": ("folder", 0, ""),
        "a/x": ("file", 3, ""),
        "link": ("link", 0, "a"),
        "gone": ("link", 0, "nothing"),
        "pipe": ("other", 0, ""),
        os.fsdecode(b"no\xfftext"): ("file", 1, ""),
    }
    assert [each.path for each in store.walk("a")] == ["deep", "deep/empty", "x"]
    for path in ("nothing", "a/x"):
        with pytest.raises(NotFound):
            store.walk(path)
