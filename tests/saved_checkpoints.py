"""Checkpoints to test with, stores that fail on purpose, and what a checkpoint holds in the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.ckpt_io.rules.types import Codec, Manifest
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, open_file, write_file
from robust_run.store.opening import open_store
from robust_run.store.types import Entry, Store, Writer

MIB = 1 << 20
Stores = Callable[[str], Store]


def content(seed: int, size_bytes: int) -> bytes:
    """Bytes that no other seed gives: one half is random, one compresses."""
    half = size_bytes // 2
    return random.Random(seed).randbytes(half) + (b"%08d" % seed * (size_bytes // 8 + 1))[: size_bytes - half]


def contents(seed: int, *, files: int = 2, size_bytes: int = 2_500_000) -> dict[str, bytes]:
    """Logical files of a checkpoint."""
    return {f"rank{index}.bin": content(seed * 100 + index, size_bytes + index) for index in range(files)}


def save(
    url: str,
    held: Mapping[str, bytes],
    also: Sequence[str] = (),
    *,
    codec: Codec = "none",
    step: int | None = None,
    stores: Stores = open_store,
    streamed: bool = False,
    created_s: float = 1e9,
    threads: int | None = 2,
) -> Manifest:
    """Save logical files as a checkpoint."""
    plan = begin_save(url, also, unit_bytes=MIB, codec=codec, item_bytes=4)
    files = []
    for index, (name, data) in enumerate(held.items()):
        if streamed:
            stream = open_file(plan, index, name, stores=stores)
            try:
                stream.write(data)
                files.append(stream.finish())
            finally:
                stream.abort()
        else:
            pieces = [FilePiece(0, memoryview(data))]
            files.append(write_file(plan, index, name, pieces, len(data), stores=stores, threads=threads))
    return commit(plan, files, step=step, stores=stores, now_s=lambda: created_s)


def held_by(url: str, also: Sequence[str] = (), *, stores: Stores = open_store) -> dict[str, bytes]:
    """Everything a checkpoint holds, verified."""
    with open_checkpoint(url, also=also, stores=stores) as opened:
        assert opened.check() == []
        files = opened.manifest.files
        return {file.name: opened.read_bytes(index, 0, file.size_bytes) for index, file in enumerate(files)}


@dataclass
class Operation:
    """Something that is asked of a store."""

    number: int
    """From 0 on, over all stores."""
    url: str
    name: str
    path: str


class Faults:
    """Opens local stores that tell of each operation before they do it: what they are told may raise instead, or never return."""

    def __init__(self, fault: Callable[[Operation], None], inner: Stores = open_store) -> None:
        self._fault, self._inner, self._lock = fault, inner, threading.Lock()
        self.operations: list[Operation] = []

    def __call__(self, url: str) -> Store:
        return FaultyStore(self._inner(url), self)

    def happen(self, url: str, name: str, path: str) -> None:
        """Count and tell."""
        with self._lock:
            operation = Operation(len(self.operations), url, name, path)
            self.operations.append(operation)
        self._fault(operation)


class FaultyStore:
    """A store whose operations may fail."""

    def __init__(self, inner: Store, faults: Faults) -> None:
        self._inner, self._faults = inner, faults
        self.url, self.writable, self.threads = inner.url, inner.writable, inner.threads

    def read_into(self, path, offset_bytes, buffers, cancel=None) -> None:
        self._faults.happen(self.url, "read_into", path)
        self._inner.read_into(path, offset_bytes, buffers, cancel)

    def read_all(self, path: str, limit_bytes: int) -> bytes:
        self._faults.happen(self.url, "read_all", path)
        return self._inner.read_all(path, limit_bytes)

    def size_bytes(self, path: str) -> int:
        self._faults.happen(self.url, "size_bytes", path)
        return self._inner.size_bytes(path)

    def list(self, path: str = "") -> list[Entry]:
        self._faults.happen(self.url, "list", path)
        return self._inner.list(path)

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> Writer:
        self._faults.happen(self.url, "create", path)
        return FaultyWriter(self._inner.create(path, size_bytes, durable=durable), self, path)

    def write_all(self, path: str, data: bytes, *, replace: bool = True, durable: bool = True) -> None:
        self._faults.happen(self.url, "write_all", path)
        self._inner.write_all(path, data, replace=replace, durable=durable)
        self._faults.happen(self.url, "written", path)

    def remove(self, path: str) -> None:
        self._faults.happen(self.url, "remove", path)
        self._inner.remove(path)

    def close(self) -> None:
        self._inner.close()

    def happen(self, name: str, path: str) -> None:
        self._faults.happen(self.url, name, path)


class FaultyWriter:
    """Its file."""

    def __init__(self, inner: Writer, store: FaultyStore, path: str) -> None:
        self._inner, self._store, self._path = inner, store, path
        self.any_order = inner.any_order

    def write_at(self, offset_bytes: int, buffers: Sequence[memoryview]) -> None:
        self._store.happen("write_at", self._path)
        first, *more = buffers
        half = first.nbytes // 2
        self._inner.write_at(offset_bytes, [first[:half]])
        self._store.happen("half written", self._path)
        self._inner.write_at(offset_bytes + half, [first[half:], *more])

    def finish(self) -> None:
        self._store.happen("finish", self._path)
        self._inner.finish()

    def abort(self) -> None:
        self._inner.abort()


class OneWayWriter(FaultyWriter):
    """As HDFS and object stores have it: ascending, one piece at a time, and it says so."""

    def __init__(self, inner: Writer, store: FaultyStore, path: str) -> None:
        super().__init__(inner, store, path)
        self.any_order = False
        self._at, self._busy = 0, threading.Lock()

    def write_at(self, offset_bytes: int, buffers: Sequence[memoryview]) -> None:
        assert self._busy.acquire(blocking=False), "two pieces at a time"
        try:
            assert offset_bytes == self._at, "not ascending"
            super().write_at(offset_bytes, buffers)
            self._at += sum(buffer.nbytes for buffer in buffers)
        finally:
            self._busy.release()


class OneWayStore(FaultyStore):
    """Of such writers."""

    def create(self, path: str, size_bytes: int | None = None, *, durable: bool = True) -> Writer:
        self.happen("create", path)
        return OneWayWriter(self._inner.create(path, size_bytes, durable=durable), self, path)


class OneWay(Faults):
    """Opens such stores."""

    def __call__(self, url: str) -> Store:
        return OneWayStore(self._inner(url), self)
