"""What the keeper uses to have others work: processes that write to storage, and threads that wait for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from robust_run.ckpt_io.memory.flushing.words import AnyOrder, FlushAnswer, FlushSilent

_Result = TypeVar("_Result")


class Process(Protocol):
    """One that writes, or removes."""

    until_s: float | None

    def next(self) -> FlushAnswer | FlushSilent:
        """Wait for what it says."""
        ...

    def is_over(self) -> bool:
        """Whether it has ended."""
        ...

    def stop(self) -> None:
        """Have it end."""
        ...


Starts = Callable[[AnyOrder, Sequence[int], "float | None"], Process]


class Runs(Protocol):
    """Runs a job in a thread, then `then` with what it returned, or raised, in the keeper's."""

    def __call__(
        self, job: Callable[[], _Result], then: Callable[[_Result | Exception], None], *, is_long: bool
    ) -> None:
        """Return at once."""
        ...
