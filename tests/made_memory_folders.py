"""A folder in memory without FUSE: its operations are called as the kernel would, and its storage is a real folder."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

from robust_run.ckpt_io.memory.budget import MemoryFacts
from robust_run.ckpt_io.memory_dir.flushing import Flusher
from robust_run.ckpt_io.memory_dir.folder import MemoryFolder
from robust_run.ckpt_io.memory_dir.layers import Layers
from robust_run.ckpt_io.memory_dir.operations import MemoryOperations
from robust_run.ckpt_io.memory_dir.storage import Storage
from robust_run.ckpt_io.memory_dir.types import MemoryDirOptions
from robust_run.ckpt_io.mount.callers import Caller, Callers

PLENTY = MemoryFacts(total_bytes=8 << 30, available_bytes=8 << 30)


class AlwaysAlive(Callers):
    """One process that lives and closes its files."""

    def __init__(self) -> None:
        self.ending = Caller(1, "alive", "process 1 closed it")

    def process_of(self, thread: int) -> int | None:
        return 1

    def caller(self, thread: int) -> Caller:
        return self.ending

    def has_another(self, process: int, path: str) -> bool:
        return False


class Operations(MemoryOperations):
    def calling_thread(self) -> int:
        return 1


class HookedFlusher(Flusher):
    """Calls something while a file is being copied."""

    meanwhile: Callable[[], object] | None = None

    def _wrote(self, size_bytes: int) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        super()._wrote(size_bytes)


class FickleStorage(Storage):
    """Refuses to be written while it has an `error`."""

    error = 0

    def new_name(self) -> str:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().new_name()

    def remove(self, path: str) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        super().remove(path)


class MadeFolder:
    """One of them, and its clock."""

    def __init__(self, storage: Path | None, limit_bytes: int | None = None, facts: MemoryFacts = PLENTY) -> None:
        self.said: list[str] = []
        self.now_s = 0.0
        options = MemoryDirOptions(point="/ckpt", storage="", limit_bytes=limit_bytes)
        self.folder = MemoryFolder(options, self.said.append, lambda: facts)
        self.storage = FickleStorage(str(storage)) if storage is not None else None
        self.folder._storage = self.storage
        self.layers = self.folder.layers = Layers(self.storage, lambda: self.now_s, lambda: int(self.now_s * 1e9))
        self.callers = AlwaysAlive()
        self.operations = Operations(
            self.layers, self.folder.make, lambda: 1 << 30, self.said.append, callers=self.callers
        )
        if self.storage is not None:
            self.flusher = HookedFlusher(self.layers, self.storage, self.said.append)

    def write(self, path: str, data: bytes) -> None:
        handle = self.operations.create(f"/{path}", 0o644)
        try:
            if data:
                self.operations.write_from(memoryview(data), 0, handle)
            self.operations.flush(f"/{path}", handle)
        finally:
            self.operations.release(f"/{path}", handle)

    def read(self, path: str) -> bytes:
        handle = self.operations.open(f"/{path}", os.O_RDONLY)
        try:
            return self.read_open(handle)
        finally:
            self.operations.release(f"/{path}", handle)

    def read_open(self, handle: int) -> bytes:
        size = self.operations.getattr(None, handle)["st_size"]
        buffer = ctypes.create_string_buffer(size + 1)
        count = self.operations.read_to(ctypes.addressof(buffer), size + 1, 0, handle)
        return buffer.raw[:count]

    def names(self, path: str = "") -> list[str]:
        handle = self.operations.opendir(f"/{path}")
        found = list(self.operations.readdir(None, handle))
        self.operations.releasedir(None, handle)
        return sorted(set(found) - {".", ".."})

    def tree(self, path: str = "") -> dict[str, bytes | None]:
        """Return all that is seen: bytes of files, None for folders."""
        found: dict[str, bytes | None] = {}
        for name in self.names(path):
            below = f"{path}/{name}" if path else name
            if self.operations.getattr(f"/{below}")["st_mode"] & 0o040000:
                found[below] = None
                found |= self.tree(below)
            else:
                found[below] = self.read(below)
        return found

    def step(self, *, is_last: bool = True) -> bool:
        """Do the next thing to storage; false: there is none."""
        task = self.layers.next_task(is_last=is_last)
        return task is not None and (self.flusher.do(task) or True)

    def flush(self) -> None:
        """Bring all to storage."""
        for _ in range(1000):
            if not self.step():
                return
            self.now_s += 100.0
        raise AssertionError("there is no end to it")


def tree_of(storage: Path) -> dict[str, bytes | None]:
    """Return what a folder of a disk has, as `MadeFolder.tree` does; what is half written is left out."""
    found: dict[str, bytes | None] = {}
    for place in sorted(storage.rglob("*")):
        name = str(place.relative_to(storage))
        if not name.startswith(".robust-flush-"):
            found[name] = place.read_bytes() if place.is_file() else None
    return found


NO_SPACE, READ_ONLY = errno.ENOSPC, errno.EROFS
