"""Background drawing of pages beside a job: an incident's a moment after it was recorded and again
when training went on, the job's when it is over.

It is done in a thread that exists only meanwhile, after the next attempt has been started: nothing waits for a page, and the
failure of one ends nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from robust_run.errors import RobustRunError

if TYPE_CHECKING:
    from robust_run.launcher.core.state import CorePolicy, JobState
    from robust_run.launcher.operator.pages.report_pages import Pages
    from robust_run.launcher.records.run_directory import RunDirectory
    from robust_run.report.pages.types import Accepts

#: From an incident to its page: first the next attempt starts.
AFTER_S = 1.0
#: How long the end of a job waits for a page that is being drawn.
PATIENCE_S = 20.0


#: Tries to read what the controller knows while it changes it.
MOST_LOOKS = 8


def _draw_one(number: int, would: Callable[[str], Accepts], pages: Pages) -> None:
    pages.write_incident(number, would)


def would_now(policy: CorePolicy, state: JobState, node: str) -> Accepts:
    """Return what the controller would do if asked about a host. In any thread: a state that changes meanwhile is read again."""
    from robust_run.launcher.operator.views.accepting import accepts
    from robust_run.report.pages.types import Accepts

    for _ in range(MOST_LOOKS):
        try:
            return accepts(policy, state, node)
        except RuntimeError:  # a dictionary changed its size while it was gone through
            continue
    return Accepts()


class IncidentPages:
    """The pages of one run."""

    def __init__(self, run_directory: RunDirectory, job: Callable[[], tuple[CorePolicy, JobState] | None]) -> None:
        """`job` returns what the controller knows; called in the thread that draws."""
        self._run_directory = run_directory
        self._job = job
        self._due: set[int] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._pages: Pages | None = None
        self.problem = ""
        """Why the newest page could not be drawn."""

    def _would(self, node: str) -> Accepts:
        from robust_run.report.pages.types import Accepts

        job = self._job()
        return would_now(*job, node) if job is not None else Accepts()

    def due(self, number: int) -> None:
        """Have the page of an incident drawn soon."""
        if self._run_directory.temporary or self._ending.is_set():
            return
        with self._lock:
            self._due.add(number)
            if self._thread is None:
                self._thread = threading.Thread(target=self._draw, name="pages", daemon=True)
                self._thread.start()

    def _draw(self) -> None:
        while not self._ending.wait(AFTER_S):
            with self._lock:
                numbers, self._due = sorted(self._due), set()
                if not numbers:
                    self._thread = None
                    return
            for number in numbers:
                self._try(partial(_draw_one, number, self._would))

    def finish(self, state: JobState) -> str:
        """Draw all pages of a job that is over; return what went wrong, nothing if nothing did."""
        if self._run_directory.temporary:
            return ""
        self._ending.set()
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                return f"one is being drawn for more than {PATIENCE_S:g} s"
        self._try(lambda pages: pages.write_ended(state))
        return self.problem

    def _try(self, draw: Callable[[Pages], object]) -> None:
        self.problem = ""
        try:
            if self._pages is None:
                from robust_run.launcher.operator.pages.report_pages import Pages

                self._pages = Pages(self._run_directory.path)
            draw(self._pages)
        except RobustRunError as error:
            self.problem = str(error)
        except Exception as error:  # a fault of a page is no reason to end a job
            self.problem = f"a fault of robust-run: {type(error).__name__}: {error}; please report it"
