"""Reads what ranks of this node note of reduced values (`--check-reduced`), and hands it to the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from robust_run.harmless import Harmless
from robust_run.launcher.model.reduced_values import ReducedValues
from robust_run.tracer.files import reduced
from robust_run.tracer.reduced.types import ReducedValue

if TYPE_CHECKING:
    import asyncio

LOOK_S = 1.0


class ReducedWatch:
    """The ranks of one attempt. `paths`: their files, by rank."""

    def __init__(
        self, attempt: int, paths: Mapping[int, str], deliver: Callable[[ReducedValues], None], harmless: Harmless
    ) -> None:
        self._attempt, self._paths = attempt, paths
        self._deliver, self._harmless = deliver, harmless
        self._read = dict.fromkeys(paths, 0)
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look from now on."""
        self._loop = loop
        self._timer = loop.call_later(LOOK_S, self._each)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop = None

    def _each(self) -> None:
        if self._loop is not None and self._harmless.run(self.look):
            self._timer = self._loop.call_later(LOOK_S, self._each)

    def look(self) -> None:
        """Tell what is new."""
        found: list[ReducedValue] = []
        for rank, path in self._paths.items():
            self._read[rank], values = reduced.read(path, rank, self._read[rank])
            found += values
        if found:
            self._deliver(ReducedValues(attempt=self._attempt, values=tuple(found)))
