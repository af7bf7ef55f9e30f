"""Rows of a list of runs, and the list as text. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.operator.views import show
from robust_run.launcher.operator.views.status_types import JobView
from robust_run.report.pages.job_page import PHASE_WORDS
from robust_run.report.pages.runs_page import RunAttempt, RunRow, RunsPage, summary
from robust_run.terminal import plain

#: Of a text: how a row's state is painted, by its tone.
COLOURS = {"good": "green", "warn": "yellow", "bad": "red"}


def state_of(job: JobView) -> tuple[str, str]:
    """Return how a job is in a word, as its page says it, and the tone of it: good, warn, bad, calm."""
    if job.outcome:
        return job.outcome, {"done": "calm", "failed": "bad"}.get(job.outcome, "warn")
    if not job.alive:
        return ("no controller" if "robust-run --resume" in job.todo else "not known"), "warn"
    if show.is_hung(job):
        return "HUNG", "bad"
    word, tone = PHASE_WORDS.get(job.phase, (job.phase, "warn"))
    return word, tone or "bad"


def row_of(path: str, job: JobView, *, incidents: int, page: str) -> RunRow:
    """Return the row of a run. `incidents`: how many there are on record; `page`: where its own is."""
    state, tone = state_of(job)
    last = job.last_incident
    return RunRow(
        run_id=path.rpartition("/")[2] or job.run_id,
        run_directory=path,
        state=state,
        tone=tone,
        headline=show.headline(job),
        note="" if job.alive or job.outcome else job.note,
        script=job.script,
        started_unix_s=job.started_unix_s or None,
        ended_unix_s=job.ended_unix_s,
        ranks=job.world_size,
        nodes=job.attempts[-1].nodes if job.attempts else job.nodes_active,
        attempts=tuple(
            RunAttempt(number=each.number, began_unix_s=each.began_unix_s, ended_unix_s=each.ended_unix_s, why=each.why)
            for each in job.attempts
        ),
        attempts_count=job.attempt + 1,
        ettr=job.ettr,
        incidents=max(incidents, int(last is not None)),
        verdict=last.sentence if last is not None else "",
        verdict_unix_s=last.at_unix_s if last is not None else None,
        page=page,
    )


def broken_row(path: str, problem: str) -> RunRow:
    """Return the row of a run of which nothing can be told."""
    return RunRow(run_id=path.rpartition("/")[2], run_directory=path, problem=problem, tone="bad")


def lines(page: RunsPage, width: int, paint: Callable[[str, str], str]) -> list[str]:
    """Return the list as text: a line for each run, no wider than `width` unless that is 0. `paint`: a text in a colour."""
    said = [plain(f"{summary(page.runs)}, in {page.folder}")]
    cells = [_cells(row, page.at_unix_s) for row in page.runs]
    heads = ("RUN", "STATE", "STARTED", "LASTED", "RANKS", "ATTEMPTS", "ETTR", "INCIDENTS")
    widths = [max(len(each[column]) for each in (heads, *cells)) for column in range(len(heads))]
    rows = [
        (*heads, "NEWEST VERDICT"),
        *((*each, row.problem or row.note or row.verdict) for each, row in zip(cells, page.runs, strict=True)),
    ]
    for index, row in enumerate(rows):
        *first, last = row
        padded = [cell.ljust(size) for cell, size in zip(first, widths, strict=True)]
        line = f"{'  '.join(padded)}  {plain(last)}".rstrip()
        line = f"{line[: width - 1]}…" if width and len(line) > width else line
        if index and (colour := COLOURS.get(page.runs[index - 1].tone)):
            head, state = f"{padded[0]}  ", padded[1]
            line = head + paint(state, colour) + line[len(head) + len(state) :]
        said.append(line)
    return [*said, f"... and {page.left_out} older ones"] if page.left_out else said


def _cells(row: RunRow, now_s: float) -> tuple[str, ...]:
    if row.problem:
        return plain(row.run_id), row.state or "not readable", "", "", "", "", "", ""
    end_s = row.ended_unix_s if row.ended_unix_s is not None else now_s
    began_s = row.started_unix_s
    return (
        plain(row.run_id),
        row.state,
        f"{show.age(now_s - began_s)} ago" if began_s is not None else "",
        show.age(end_s - began_s) if began_s is not None else "",
        str(row.ranks) if row.ranks else "",
        str(row.attempts_count),
        f"{row.ettr:.1%}" if row.ettr is not None else "",
        str(row.incidents),
    )
