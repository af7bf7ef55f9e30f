"""The last lines of a job, on the terminal of its controller."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.launcher.agent.evidence import hand_up_error_file
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.actions import Finish
from robust_run.launcher.records.incidents import IncidentBook
from robust_run.launcher.records.outcome import leave
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.report import summary


def say_goodbye(
    say: Callable[[str], None],
    run_directory: RunDirectory,
    book: IncidentBook,
    finish: Finish,
    state: JobState,
    lived_s: float,
    *,
    refused: int = 0,
    journal_problem: str = "",
) -> None:
    """Say how the job ended, and hand the culprit's error file up to whoever started the launcher.

    `refused`: how many agents were turned away. `journal_problem`: why lines of the journal are missing; empty: none are.
    """
    match finish.outcome:
        case "done" if state.trail.restarts:
            say(summary.done_line(state.world_size, state.trail.restarts, lived_s))
        case "stopped":
            say(f"{finish.reason} after {summary.duration(lived_s)}")
        case "failed" if not book.incidents or book.incidents[-1].action.name != "stop":
            log = "" if run_directory.temporary else f" (see {run_directory.shown(run_directory.controller_log)})"
            also = f"; agents were turned away{log}" if refused else ""
            say(f"FAILED after {summary.duration(lived_s)}: {finish.reason}{also}")
        case "failed":
            folder = run_directory.shown(run_directory.path)
            lines = summary.failure_lines(
                book.incidents[-1],
                state.attempt + 1,
                lived_s,
                folder,
                is_here=lambda path: os.path.exists(os.path.join(run_directory.path, path)),
            )
            for line in lines:
                say(line)
            if book.culprit is not None:
                error_file = run_directory.error_file(book.incidents[-1].attempt, book.culprit.rank)
                hand_up_error_file(error_file, finish.exit_code, os.environ.get("TORCHELASTIC_ERROR_FILE"))
        case _:
            pass
    problem = book.pages.finish(state)
    if not run_directory.temporary:
        is_marked = bool(journal_problem) and leave(run_directory.path, finish)
        for line in _not_kept(finish.outcome, journal_problem, problem, is_marked=is_marked):
            say(line)
    if book.incidents and not problem and not run_directory.temporary:
        say(
            f"pages: {run_directory.shown(os.path.join(run_directory.path, 'report.html'))}, one for each incident beside it"
        )
    book.ended(finish)


def _not_kept(outcome: str, journal_problem: str, pages_problem: str, *, is_marked: bool) -> list[str]:
    """Return lines about what the run directory lacks: whoever asks it later must not take the job for one that broke off."""
    lines = []
    if journal_problem and is_marked:
        lines.append(
            f"the journal is not complete ({journal_problem}): robust status knows how this job ended, but not all before"
        )
    elif journal_problem:
        ended = {"done": "has finished", "failed": "has failed"}.get(outcome, "was stopped")
        lines.append(
            f"the journal is not complete ({journal_problem}): robust status and robust report may not know that this job "
            f"{ended}; do not --resume it on their word"
        )
    if pages_problem:
        lines.append(f"pages are missing or not up to date: {pages_problem}; robust report writes them again")
    return lines
