"""A keeper of memory that is none: three buffers in this process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from robust_run.ckpt_io.memory.client import Buffer, Skipped
from robust_run.store.digests import digest


class FakeKeeper:
    """Three buffers in this process, used in turn."""

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.views: list[memoryview] = []
        self.parts: dict[int, Any] = {}
        self.calls = 0
        self.is_skipping = self.is_planned = False

    def begin(self, step: int, size_bytes: int, storage: str = "") -> Buffer | Skipped:
        if self.is_skipping:
            return Skipped(reason="wait", is_planned=self.is_planned)
        if not self.reserved or size_bytes > self.reserved[-1]:
            self.reserved.append(size_bytes)
            self.views = [memoryview(bytearray(size_bytes)) for _ in range(3)]
        self.calls += 1
        return Buffer(view=self.views[self.calls % 3], id=self.calls % 3, step=step)

    def copied(self, buffer: Buffer, used_bytes: int) -> None:
        self.parts[buffer.step] = SimpleNamespace(
            view=buffer.view, used_bytes=used_bytes, digest=digest(buffer.view[:used_bytes]), close=lambda: None
        )

    def fetch(self, attempt: int, step: int) -> Any:
        return self.parts.get(step)

    def close(self) -> None:
        pass
