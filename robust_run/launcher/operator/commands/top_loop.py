"""Shows a screen again and again, and reads keys. What is shown is fetched in a thread: keys answer meanwhile."""

from __future__ import annotations

import os
import select
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

from robust_run.errors import RobustRunError
from robust_run.launcher.operator.top.keys import Looking, press, read_keys
from robust_run.launcher.operator.top.screen import rows_of, screen
from robust_run.launcher.operator.views.live import MOST_NODES, LiveView

#: How often the controller is asked, and keys and the window's size are looked at.
ASK_S = 1.0
LOOK_S = 0.2

_View = TypeVar("_View")


@dataclass(frozen=True)
class Shown(Generic[_View]):
    """How something is shown."""

    draw: Callable[[_View, Looking, int, int, str], RenderableType]
    """Returns a screen of exactly so many columns and lines; the text is why what is shown is old."""
    rows: Callable[[_View, Looking, int, int, str], int]
    """Returns how many rows of a table fit into it."""
    total: Callable[[_View, Looking], int]
    """Returns how many rows there are."""


#: `robust top` of a job.
OF_A_JOB: Shown[LiveView] = Shown(
    draw=screen,
    rows=lambda view, _, width, height, trouble: rows_of(view, width, height, trouble),
    total=lambda view, looking: view.nodes_total if looking.pane == "nodes" else len(view.incidents),
)


class ScreenFetcher(Generic[_View]):
    """Asks for what is wanted, in a thread of its own, once a second or when something else is wanted.

    `fetch`: returns what is shown, with rows from a place on, and how many. Raises RobustRunError.
    """

    def __init__(self, fetch: Callable[[int, int], _View], first: _View) -> None:
        self.view = first
        self.trouble = ""
        self._fetch = fetch
        self._wanted = (0, 100)
        self._wake = threading.Event()
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="top", daemon=True)
        self._thread.start()

    def want(self, first: int, count: int) -> None:
        """Ask for these nodes from now on."""
        if (first, count) != self._wanted:
            self._wanted = first, count
            self._wake.set()

    def close(self) -> None:
        """Ask no more."""
        self._is_over = True
        self._wake.set()

    def _work(self) -> None:
        while not self._is_over:
            try:
                self.view, self.trouble = self._fetch(*self._wanted), ""
            except RobustRunError as error:
                self.trouble = f"{error}; what is shown is old"
            self._wake.wait(ASK_S)
            self._wake.clear()


def watch(fetch: Callable[[int, int], _View], console: Console, descriptor: int, shown: Shown[_View]) -> None:
    """Show a job until the user presses q. `descriptor`: the terminal of the keys. Raises RobustRunError at the first look."""
    looking = Looking()
    fetcher = ScreenFetcher(fetch, fetch(0, 100))
    try:
        with _keys(descriptor), Live(console=console, screen=True, auto_refresh=False) as display:
            while not looking.is_over:
                view, trouble = fetcher.view, fetcher.trouble
                width, height = console.size
                display.update(shown.draw(view, looking, width, height, trouble), refresh=True)
                rows = shown.rows(view, looking, width, height, trouble)
                looking = press(looking, read_keys(_pressed(descriptor)), rows, shown.total(view, looking))
                fetcher.want(looking.first if looking.pane == "nodes" else 0, min(rows, MOST_NODES))
    except KeyboardInterrupt:
        pass
    finally:
        fetcher.close()


def _pressed(descriptor: int) -> bytes:
    """Return what was typed, or nothing after a moment. A terminal that is gone is one where q was pressed."""
    ready, _, _ = select.select([descriptor], [], [], LOOK_S)
    if not ready:
        return b""
    try:
        return os.read(descriptor, 1024) or b"q"
    except OSError:
        return b"q"


@contextmanager
def _keys(descriptor: int) -> Iterator[None]:
    """Have keys arrive one by one, not echoed; leave the terminal as it was."""
    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        yield
        return
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
