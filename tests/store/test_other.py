"""Stores that fsspec opens: its memory file system stands for them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import fsspec
import pytest
from object_store import object_store

from robust_run.errors import UserError
from robust_run.store import other
from robust_run.store.errors import (
    AlreadyExists,
    BadPath,
    NotFound,
    ShortRead,
    Stalled,
    StoreError,
    TooLarge,
    Unavailable,
    is_transient,
)
from robust_run.store.opening import open_store
from robust_run.store.types import Store, StoreOptions


@pytest.fixture
def store() -> Iterator[Store]:
    found = open_store(f"memory://{uuid.uuid4().hex}")
    yield found
    found.remove("folder")
    found.close()


@pytest.mark.parametrize(
    ("raised", "kind", "words"),
    [
        (OSError(-2, "Name or service not known"), StoreError, "far://host/x: Name or service not known"),
        (ConnectionRefusedError(111, "Connection refused"), Unavailable, "far://host/x: Connection refused"),
        (EOFError("it hung up"), StoreError, "far://host/x: it cannot be opened: EOFError: it hung up"),
    ],
)
def test_a_library_that_connects_at_once_and_fails_is_a_store_that_fails(
    raised: Exception, kind: type[StoreError], words: str
) -> None:
    class Far(fsspec.AbstractFileSystem):  # type: ignore[misc]
        protocol = "far"

        def __init__(self, **_options: object) -> None:
            raise raised

    fsspec.register_implementation("far", Far, clobber=True)
    with pytest.raises(kind) as caught:
        open_store("far://host/x")
    assert str(caught.value) == words


def test_what_is_written_in_order_is_read_back(store: Store) -> None:
    writer = store.create("folder/f", 10)
    assert not writer.any_order
    writer.write_at(0, [memoryview(b"01"), memoryview(b"234")])
    writer.write_at(5, [memoryview(b"56789")])
    with pytest.raises(NotFound):
        store.size_bytes("folder/f")
    writer.finish()
    buffer = bytearray(6)
    store.read_into("folder/f", 2, [memoryview(buffer)[:1], memoryview(buffer)[1:]])
    assert buffer == b"234567"
    assert store.size_bytes("folder/f") == 10
    assert [(entry.name, entry.size_bytes, entry.is_folder) for entry in store.list("folder")] == [("f", 10, False)]
    assert store.list("folder")[0].modified_s is not None
    assert [(entry.name, entry.is_folder) for entry in store.list()] == [("folder", True)]


def test_pieces_out_of_order_and_files_that_are_not_whole_are_refused(store: Store) -> None:
    writer = store.create("folder/f", 10)
    with pytest.raises(StoreError, match="grows at its end, 0, not at 5"):
        writer.write_at(5, [memoryview(b"x")])
    writer.write_at(0, [memoryview(b"12345")])
    with pytest.raises(StoreError, match="5 bytes were written of 10"):
        writer.finish()
    writer.abort()
    assert store.list("folder") == []


def test_small_files_are_replaced_or_not(store: Store) -> None:
    store.write_all("folder/f", b"one")
    store.write_all("folder/f", b"two")
    with pytest.raises(AlreadyExists):
        store.write_all("folder/f", b"three", replace=False)
    store.write_all("folder/g", b"new", replace=False)
    assert store.read_all("folder/f", 3) == b"two"
    assert [entry.name for entry in store.list("folder")] == ["f", "g"]


def test_what_is_not_there_too_short_or_too_long(store: Store) -> None:
    store.write_all("folder/f", b"12345")
    with pytest.raises(ShortRead, match="3 are there"):
        store.read_into("folder/f", 2, [memoryview(bytearray(10))])
    with pytest.raises(TooLarge):
        store.read_all("folder/f", 4)
    for call in (lambda: store.read_all("none", 1), lambda: store.list("none"), lambda: store.size_bytes("folder")):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotFound):
        store.list("folder/f")
    with pytest.raises(BadPath):
        store.read_all("../f", 1)
    store.remove("none")
    store.remove("folder/f")
    with pytest.raises(NotFound):
        store.size_bytes("folder/f")


class Awkward(fsspec.AbstractFileSystem):
    """A file system whose reads do as they are told."""

    protocol = "awkward"
    act = staticmethod(lambda: b"")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: object) -> bytes:
        return type(self).act()


class ClientError(Exception):
    """As botocore's."""


ClientError.__module__ = "botocore.exceptions"


@pytest.mark.parametrize(
    ("error", "ours", "transient"),
    [
        (FileNotFoundError("f"), NotFound, False),
        (ConnectionResetError("gone"), Unavailable, True),
        (ClientError("SlowDown"), Unavailable, True),
        (OSError("no number"), Unavailable, True),
        (ClientError("InvalidRange"), ShortRead, False),
        (KeyError("a mistake"), StoreError, False),
    ],
)
def test_errors_of_libraries_become_ours(error: Exception, ours: type[StoreError], transient: bool) -> None:
    fsspec.register_implementation("awkward", Awkward, clobber=True)

    def fail() -> bytes:
        raise error

    Awkward.act = staticmethod(fail)
    store = open_store("awkward://x")
    with pytest.raises(ours) as raised:
        store.read_into("f", 0, [memoryview(bytearray(5))])
    assert is_transient(raised.value) == transient
    store.close()


def test_a_read_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    release, buffer = threading.Event(), bytearray(5)
    fsspec.register_implementation("awkward", Awkward, clobber=True)
    Awkward.act = staticmethod(lambda: (release.wait(60), b"12345")[1])
    store = open_store("awkward://x", StoreOptions(stall_s=0.1))
    with pytest.raises(Stalled):
        store.read_into("f", 0, [memoryview(buffer)])
    release.set()
    assert buffer == bytes(5)


@pytest.mark.parametrize("url", ["nosuch://x", "sftp://host/x"])
def test_what_fsspec_cannot_open_is_the_users_error(url: str) -> None:
    with pytest.raises(UserError, match="fsspec"):
        open_store(url)


def test_object_stores_need_no_second_name() -> None:
    assert {"s3", "gs", "abfs"} <= other._WHOLE_AT_ONCE
    assert not {"memory", "sftp", "file"} & other._WHOLE_AT_ONCE


def test_everything_below_a_folder_is_told(store: Store) -> None:
    for path in ("b", "a/deep/x", "a/y"):
        store.write_all(path, path.encode())
    found = [(each.path, each.kind, each.size_bytes) for each in store.walk()]
    assert found == [
        ("a", "folder", 0),
        ("a/deep", "folder", 0),
        ("a/deep/x", "file", 8),
        ("a/y", "file", 3),
        ("b", "file", 1),
    ]
    assert [each.path for each in store.walk("a")] == ["deep", "deep/x", "y"]
    for path in ("nothing", "a/y"):
        with pytest.raises(NotFound):
            store.walk(path)


def test_an_object_store_tells_what_its_keys_say() -> None:
    """Also what can be no path: it is up to who asked what that means."""
    with object_store() as objects:
        for key in ("r/a/x", "r/a/", "r/empty/", "r/both", "r/both/y", "r/../up", "r/a//z", "r2/other"):
            objects.put(f"bucket/{key}", b"" if key.endswith("/") else b"1")
        store = open_store("s3://bucket/r")
        found = {each.path: each.kind for each in store.walk()}
        store.close()
    files = dict.fromkeys(("a/x", "both", "both/y", "../up", "a//z"), "file")
    assert found == {**files, "a": "folder", "empty": "folder"}
