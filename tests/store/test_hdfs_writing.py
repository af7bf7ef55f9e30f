"""A write to HDFS that is given up: what is left of it must hold nobody up."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from typing import Any

import pytest

from robust_run.store.errors import Stalled, StoreError
from robust_run.store.hdfs_writing import HdfsWriter
from robust_run.store.watching import CallProgress

pytest.importorskip("hdfs_native", reason="needs hdfs-native")


class _Inner:
    """What hdfs-native's file objects call; it notes that it was closed, which may take minutes."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def close(self) -> None:
        self.calls.append("close")


class _File(io.RawIOBase):
    """As hdfs-native's `FileWriter`: an `io` object, which Python closes when it collects it."""

    def __init__(self, calls: list[str]) -> None:
        self.inner = _Inner(calls)

    def write(self, data: Any) -> int:
        self.inner.calls.append("write")
        return len(data)

    def hsync(self) -> None:
        self.inner.calls.append("hsync")

    def close(self) -> None:
        self.inner.close()


class _Client:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def create(self, name: str, options: object) -> _File:
        return _File(self.calls)

    def delete(self, name: str, recursive: bool) -> None:
        self.calls.append("delete")

    def rename(self, old: str, new: str, overwrite: bool) -> None:
        self.calls.append("rename")


def writer_to(client: _Client, call: Callable[..., Any]) -> HdfsWriter:
    return HdfsWriter(
        lambda: client,  # type: ignore[arg-type,return-value]
        call,
        "hdfs://name",
        "file",
        "/folder/file",
        None,
        durable=True,
        replace=True,
    )


def at_once(path: str, work: Callable[[CallProgress], Any]) -> Any:
    return work(CallProgress())


def test_the_stand_in_is_closed_when_it_is_collected() -> None:
    """As any of Python's file objects: without this the tests below would show nothing."""
    calls: list[str] = []
    _File(calls)
    gc.collect()
    assert calls == ["close"]


def test_a_file_that_is_finished_is_closed_once() -> None:
    client = _Client()
    writer = writer_to(client, at_once)
    writer.write_at(0, [memoryview(b"abc")])
    writer.finish()
    del writer
    gc.collect()
    assert client.calls == ["write", "hsync", "close", "rename"]


def test_a_file_that_is_aborted_is_not_closed_by_whoever_collects_it() -> None:
    client = _Client()
    writer = writer_to(client, at_once)
    writer.write_at(0, [memoryview(b"abc")])
    writer.abort()
    del writer
    gc.collect()
    assert client.calls == ["write", "delete"]


def test_a_file_whose_write_was_given_up_is_not_closed_by_whoever_collects_it() -> None:
    client = _Client()

    def call(path: str, work: Callable[[CallProgress], Any]) -> Any:
        done = work(CallProgress())
        if client.calls[-1:] == ["hsync"]:
            client.calls.append("stalled")
            raise Stalled("hdfs://name", path, "nothing moved")
        return done

    writer = writer_to(client, call)
    writer.write_at(0, [memoryview(b"abc")])
    with pytest.raises(StoreError, match="nothing moved"):
        writer.finish()
    del writer
    gc.collect()
    assert client.calls.count("stalled") > 1
    assert "close" not in client.calls
