"""Reading one range of one file, as a job of the engine: retried, hedged, checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from robust_run.store.buffers import byte_views, scatter, total_bytes
from robust_run.store.cancelling import Cancellation
from robust_run.store.types import Store


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
