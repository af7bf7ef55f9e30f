"""Time that the image or environment of workers took to make (`--image`, `--setup`), for the startup profile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from robust_run.clock import Clock

_Made = TypeVar("_Made")


class Opening(NamedTuple):
    """Of one node, in time of its monotonic clock."""

    began_s: float
    ended_s: float


def timed(clock: Clock, make: Callable[[], _Made]) -> tuple[_Made, Opening]:
    """Return what `make` does, and how long that took."""
    began_s = clock.monotonic_s()
    made = make()
    return made, Opening(began_s, clock.monotonic_s())
