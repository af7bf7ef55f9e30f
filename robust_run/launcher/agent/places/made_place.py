"""What makes a place for workers gives back: its namespaces, their holder, why it is lost; and who hears what happens to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from robust_run.prefetch.inside import Inside
    from robust_run.prefetch.launch import Prepared

_HOLDERS = (b"robust_run.prefetch.inside.holder", b"robust_run.snapshot.restore.holder")


class Hears(NamedTuple):
    """Who is told what happens to a place, a sentence each, from any thread."""

    trouble: Callable[[str], None]
    """Something went wrong that a rank may fail of."""
    note: Callable[[str], None]
    """Something is worth knowing, and no rank fails of it."""


class MadePlace(Protocol):
    """A place that was made."""

    @property
    def inside(self) -> Inside | None:
        """Its namespaces and their holder; None: it has none of its own."""
        ...

    @property
    def prepared(self) -> Prepared | None:
        """What this launch knows of its image; None: nothing of it is recorded."""
        ...

    @property
    def reason(self) -> str:
        """Why it is lost; "" while it is not."""
        ...

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces that programs run in; empty: in ours."""
        ...

    def stop(self) -> None:
        """Let it go, after the workers have ended. Never raises."""
        ...


def is_holder(pid: int) -> bool:
    """Whether a child of ours holds a place, or is about to."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read(4096)
    except OSError:
        return False
    return any(holder in line for holder in _HOLDERS)
