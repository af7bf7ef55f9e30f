"""Console of a launcher process: its lines, the workers' output, and the one complaint about a full disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.launcher.agent.output.files import FileSink
from robust_run.launcher.agent.output.route import OutputRouter
from robust_run.launcher.agent.output.sinks import BoundedWriter, open_console
from robust_run.launcher.model.job import JobSpec, Std

if TYPE_CHECKING:
    from robust_run.launcher.records.incidents import Drawer, JobKnown
    from robust_run.launcher.records.notifier.notifier import Notifier
    from robust_run.launcher.records.run_directory import RunDirectory

#: How long a reader of our output that has stopped reading may hold up our exit.
DRAIN_S = 5.0


class Complaint:
    """Says once that the run directory cannot be written; called from any thread."""

    def __init__(self, console: BoundedWriter) -> None:
        self.was_made = False
        self._console = console

    def __call__(self, path: str, error: OSError) -> None:
        """Say it, the first time."""
        if not self.was_made:
            self.was_made = True
            why = error.strerror or error
            from robust_run.terminal import plain

            line = f"robust-run: cannot write {path}: {why}; the job goes on, what cannot be written is left out;"
            line += " free some space there, or give the next job another --log-dir"
            self._console.offer(f"{plain(line)}\n".encode())


def drawing(run_directory: RunDirectory, job: JobKnown) -> Drawer:
    """Return what draws the pages of a run, for its book of incidents; imported when there is something to draw."""
    from robust_run.launcher.operator.pages.incident_pages import IncidentPages

    return IncidentPages(run_directory, job)


def telling(
    spec: JobSpec, run_directory: RunDirectory, clock: Clock, console: Console
) -> Callable[[], Notifier | None] | None:
    """Return what makes whoever tells others of this job's incidents (`--notify`), None where nobody is to be told.

    Says which command of those is not there.
    """
    if not spec.notify:
        return None
    import shutil

    from robust_run.launcher.records.notifier.notifier import missing_commands

    for line in missing_commands(spec.notify, shutil.which):
        console.say(line)

    def make() -> Notifier | None:
        from socket import gethostname

        from robust_run.launcher.records.notifier.notifier import notifier_of
        from robust_run.launcher.records.notify.wording import About

        path = "" if run_directory.temporary else run_directory.path
        about = About(run_id=spec.run_id, script=spec.script, host=gethostname(), run_directory=path)
        return notifier_of(spec.notify, about, clock, console.say)

    return make


class Console:
    """The terminal or pipes of a launcher process. Close it last."""

    def __init__(self, spec: JobSpec, clock: Clock) -> None:
        self._out, self._err = open_console(1, 2)
        self.complain = Complaint(self._err)
        self._files = FileSink(on_error=self.complain)
        self.router = OutputRouter(
            spec.streams,
            spec.role,
            console_out=self._out,
            console_err=self._err,
            files=self._files,
            clock=clock,
            console_is_terminal=Std(out=os.isatty(1), err=os.isatty(2)),
        )

    def say(self, text: str) -> None:
        """Say a line to the user on stderr."""
        self.router.say(f"robust-run: {text}")

    def say_unless_full(self, text: str) -> None:
        """Say a line, unless it was said already that nothing can be written."""
        if not self.complain.was_made:
            self.say(text)

    def close(self) -> None:
        """Write out what is left, as far as somebody reads it."""
        self._files.stop()
        self._out.drain(DRAIN_S)
        self._err.drain(DRAIN_S)
