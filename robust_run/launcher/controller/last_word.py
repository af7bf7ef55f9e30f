"""The last lines of a job, on the terminal of its controller."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.launcher.core.state import JobState
from robust_run.launcher.events import Finish
from robust_run.launcher.evidence import hand_up_error_file
from robust_run.launcher.incidents import IncidentBook
from robust_run.launcher.run_directory import RunDirectory
from robust_run.report import summary


def say_goodbye(
    say: Callable[[str], None],
    run_directory: RunDirectory,
    book: IncidentBook,
    finish: Finish,
    state: JobState,
    lived_s: float,
) -> None:
    """Say how the job ended, and hand the culprit's error file up to whoever started the launcher."""
    match finish.outcome:
        case "done" if state.trail.restarts:
            say(summary.done_line(state.world_size, state.trail.restarts, lived_s))
        case "stopped":
            say(f"{finish.reason} after {summary.duration(lived_s)}")
        case "failed" if not book.incidents or book.incidents[-1].action.name != "stop":
            say(f"FAILED after {summary.duration(lived_s)}: {finish.reason}")
        case "failed":
            folder = run_directory.shown(run_directory.path)
            for line in summary.failure_lines(book.incidents[-1], state.attempt + 1, lived_s, folder):
                say(line)
            if book.culprit is not None:
                error_file = run_directory.error_file(book.incidents[-1].attempt, book.culprit.rank)
                hand_up_error_file(error_file, finish.exit_code, os.environ.get("TORCHELASTIC_ERROR_FILE"))
        case _:
            pass
