"""What people are told of how workers were started; nothing of this decides anything."""

from __future__ import annotations

from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import (
    AttemptStarted,
    Event,
    StoreOpened,
    WarmReady,
    WarmRefused,
)
from robust_run.launcher.records.incidents import IncidentBook


class News:
    """Of one job."""

    def __init__(
        self,
        state: JobState,
        book: IncidentBook,
        relaunched: int,
        *,
        is_many: bool,
    ) -> None:
        """`relaunched`: the attempt of which it was said already; -1: of none. `is_many`: nodes are told apart."""
        self._state, self._book = state, book
        self._is_many = is_many
        self._how: dict[str, AttemptStarted] = {}
        self._relaunched = relaunched

    def take(self, event: Event) -> None:
        """Say what follows for people from an event."""
        match event:
            case StoreOpened():
                self._how = {}
            case AttemptStarted() if event.attempt == self._state.attempt > max(0, self._relaunched):
                self._how.setdefault(event.node, event)
                if len(self._state.started) == len(self._state.layout) == len(self._how):
                    self._relaunched = event.attempt
                    rungs = tuple(rung for started in self._how.values() for rung in started.how)
                    why = next((started.why for started in self._how.values() if started.why), "")
                    self._book.relaunched(event.attempt, rungs, why)
            case WarmReady():
                for module in event.skipped:
                    self._say(f"--preload: left out {module}", event.node)
            case WarmRefused() if event.module:
                self._say(f"--preload: left out {event.module}: after it, {event.reason}", event.node)
            case WarmRefused():
                self._say(f"later attempts start from nothing: {event.reason}", event.node)
            case _:
                pass

    def _say(self, text: str, node: str) -> None:
        name = name_of(self._state, node) if self._is_many else ""
        self._book.say(f"{name}: {text}" if name else text)
