"""How long the place of workers took to make (`--image`, `--setup`), for who wants to know where a start's time went."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from robust_run.clock import Clock
    from robust_run.launcher.place import Opened


class Opening(NamedTuple):
    """Of one node, in time of its monotonic clock."""

    began_s: float
    ended_s: float


def timed(clock: Clock, make: Callable[[], Opened]) -> Opened:
    """Return what `make` does, with how long that took."""
    began_s = clock.monotonic_s()
    return make()._replace(opening=Opening(began_s, clock.monotonic_s()))
