"""A block server of a place, asked from outside: how it is, what was read, and what it is to fetch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from robust_run.prefetch.errors import ControlFailed
from robust_run.prefetch.rules.types import Status, Touch
from robust_run.prefetch.server import control
from robust_run.prefetch.server.config import Background

_Reply = TypeVar("_Reply", Status, control.Touches, control.Done)
_ASK_LIMIT_S = 10.0


class AskedServer:
    """One block server; it may be there or not. Safe to use from threads. See `window.Served`."""

    def __init__(self, control_path: str, why_lost: Callable[[], str]) -> None:
        """`control_path`: its socket; "": there is no server. `why_lost`: why its place is lost; "" while it is not."""
        self.control_path = control_path
        self._why_lost = why_lost

    def status(self, limit_s: float = _ASK_LIMIT_S) -> Status | None:
        """Ask the block server how it is; None where there is none. Raises `ControlFailed`."""
        return self._ask(control.AskStatus(), Status, limit_s)

    def touches(self, limit_s: float = _ASK_LIMIT_S) -> tuple[list[Touch], float]:
        """Return what was read in the window, and how long that was in seconds; nothing without a server. Raises as `status`."""
        found = self._ask(control.AskTouches(), control.Touches, limit_s)
        return (list(found.touches), found.window_s) if found else ([], 0.0)

    def close_window(self, limit_s: float = _ASK_LIMIT_S) -> None:
        """Record no more touches. Raises as `status`."""
        self._ask(control.AskCloseWindow(), control.Done, limit_s)

    def background(self, width: int, bytes_per_s: float | None = None, limit_s: float = _ASK_LIMIT_S) -> None:
        """Have the rest of the image fetched with so many requests at once; 0: no more. Raises as `status`."""
        self._ask(control.AskBackground(Background(width=width, bytes_per_s=bytes_per_s)), control.Done, limit_s)

    def wait_anew(self, limit_s: float = 1.0) -> None:
        """Have it wait for sources that failed the whole time again: another attempt begins. Never raises."""
        with suppress(ControlFailed):
            self._ask(control.AskWaitAnew(), control.Done, limit_s)

    def _ask(self, request: control.Request, kind: type[_Reply], limit_s: float) -> _Reply | None:
        if not self.control_path:
            return None
        if lost := self._why_lost():
            raise ControlFailed(lost)
        return control.ask(self.control_path, request, kind, limit_s)
