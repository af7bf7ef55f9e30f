"""The words of the engine: a job, when to do it again, when to do it twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from robust_run.store.buffers import byte_views, scatter, total_bytes
from robust_run.store.cancelling import Cancellation
from robust_run.store.types import Store


class TransferJob(Protocol):
    """One range to move. `run` may be called again after it failed, and then does the whole of it again."""

    @property
    def size_bytes(self) -> int:
        """What it adds to the progress when it is done."""
        ...

    def run(self, attempt: int) -> None:
        """Do it; `attempt` counts from 0. A transient `StoreError` has it called again."""
        ...


@runtime_checkable
class HedgedJob(Protocol):
    """A job that can be read a second time while the first read is still under way."""

    size_bytes: int

    def run(self, attempt: int) -> None:
        """As `TransferJob.run`."""

    def cancel(self) -> None:
        """Make `run` end soon, now and from now on, by raising. Called from another thread; never blocks."""

    def hedge(self, cancel: Cancellation) -> object:
        """Read the same into memory of its own and return that. Raises `StoreError`."""

    def adopt(self, found: object) -> None:
        """Take over what `hedge` returned. `run` has ended."""


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often to try, and how long to wait in between: exponentially longer, at random, or all ranks would return as one."""

    attempts: int = 5
    first_wait_s: float = 0.2
    longest_wait_s: float = 5.0


class Hedge(msgspec.Struct, frozen=True, kw_only=True):
    """When a job is slow enough to be read a second time."""

    after_s: float = 0.5
    """Never before it has run for so long."""
    slower: float = 3.0
    """Nor before it has taken so many times what jobs of its size take in the median."""
    at_once: int = 8
    """Second reads at the same time."""


class Transferred(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    jobs: int
    size_bytes: int
    retries: int
    hedges: int
    """Second reads that were begun."""


class ReadJob:
    """Fills buffers from an offset of a file on. May be read a second time, into memory of its own, when it is slow."""

    def __init__(
        self,
        store: Store,
        path: str,
        offset_bytes: int,
        buffers: Sequence[memoryview],
        check: Callable[[Sequence[memoryview]], None] | None = None,
    ) -> None:
        """`check` is given what was read, in the thread that read it; it raises for what must not be handed on."""
        self.store, self.path, self.offset_bytes = store, path, offset_bytes
        self.buffers = byte_views(buffers, to_fill=True)
        self.size_bytes = total_bytes(self.buffers)
        self.check = check
        self._cancel = Cancellation()

    def run(self, attempt: int) -> None:  # noqa: ARG002 (all attempts are the same here)
        """Read straight into the buffers."""
        self.store.read_into(self.path, self.offset_bytes, self.buffers, self._cancel)
        if self.check is not None:
            self.check(self.buffers)

    def cancel(self) -> None:
        """End `run` early."""
        self._cancel.cancel()

    def hedge(self, cancel: Cancellation) -> memoryview:
        """Read the same into fresh memory."""
        scratch = memoryview(bytearray(self.size_bytes))
        self.store.read_into(self.path, self.offset_bytes, [scratch], cancel)
        if self.check is not None:
            self.check([scratch])
        return scratch

    def adopt(self, found: object) -> None:
        """Copy what `hedge` read."""
        assert isinstance(found, memoryview)
        scatter(found, self.buffers, 0)
