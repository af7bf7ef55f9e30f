"""Writes pages into a run directory: `incidents/NNNN.html` and `report.html`, from what is in the directory alone."""

from __future__ import annotations

import os
import time

import msgspec

from robust_run.errors import PlatformError
from robust_run.launcher.api.dead import DeadJob, read_dead
from robust_run.launcher.api.page_data import incident_page, job_page
from robust_run.launcher.api.page_reading import JournalTail, checkpoints_in, heat_in, incidents_in, nodes_by_rank, scene_in
from robust_run.launcher.api.pictures import newest_with_rings
from robust_run.report.pages.incident_page import incident_html, incident_name
from robust_run.report.pages.job_page import job_html
from robust_run.report.pages.types import JobPage

#: File of the job's page.
REPORT_NAME = "report.html"
#: File of the numbers behind its heat-map: rings in memory do not outlive the job.
HEAT_NAME = "steps.json"


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    report: str
    incidents: tuple[str, ...] = ()


def write_report(run_directory: str, memory: str = "", *, is_live: bool = False) -> Written:
    """Write the pages of a job and of all its incidents. Raises PlatformError or UserError for what cannot be read or written.

    `memory`: where the rings of its ranks are, while they are.
    """
    dead = read_dead(run_directory)
    tail = _tail(run_directory)
    history, now_s = tail.history, time.time()
    incidents = incidents_in(run_directory)
    kept = checkpoints_in(tail.header.job.ckpt_dir if tail.header is not None else None)
    written = []
    for number in range(1, len(incidents) + 1):
        page = incident_page(
            dead.facts,
            history,
            incidents,
            number,
            scene_in(run_directory, number),
            now_s,
            kept=kept,
            is_live=is_live and dead.state.finish is None,
        )
        written.append(_write(os.path.join(run_directory, "incidents", incident_name(number)), incident_html(page)))
    job = job_page(
        dead.facts,
        dead.state,
        history,
        incidents,
        now_s,
        kept=kept,
        is_live=False,
        note="" if dead.state.finish is not None else "the job was not seen to end",
    )
    job = with_pictures(job, run_directory, memory)
    if memory and job.heat is not None:
        _write(os.path.join(run_directory, HEAT_NAME), msgspec.json.encode(job.heat).decode())
    report = _write(os.path.join(run_directory, REPORT_NAME), job_html(job))
    return Written(report=report, incidents=tuple(written))


def write_incident(run_directory: str, number: int) -> str:
    """Write the page of one incident of a job that goes on; return its path. Raises as `write_report` does."""
    dead: DeadJob = read_dead(run_directory)
    tail = _tail(run_directory)
    incidents = incidents_in(run_directory)
    if number > len(incidents):
        raise PlatformError(f"incident {number} of {run_directory!r} cannot be read: there are {len(incidents)}")
    kept = checkpoints_in(tail.header.job.ckpt_dir if tail.header is not None else None)
    page = incident_page(
        dead.facts,
        tail.history,
        incidents,
        number,
        scene_in(run_directory, number),
        time.time(),
        kept=kept,
        is_live=dead.state.finish is None,
    )
    return _write(os.path.join(run_directory, "incidents", incident_name(number)), incident_html(page))


def with_pictures(job: JobPage, run_directory: str, memory: str = "") -> JobPage:
    """Return the page's data with the heat-map of the newest attempt that left one."""
    newest = job.attempts[-1].number if job.attempts else 0
    heat, attempt, note = heat_in(run_directory, memory, newest) if memory else None, newest, ""
    if heat is None and (found := _kept_heat(run_directory)) is not None:
        heat = found
    elif heat is None and os.path.isdir(run_directory):
        attempt = newest_with_rings(run_directory)
        heat = heat_in(run_directory, "", attempt)
        note = f"Of attempt {attempt}, the newest that left a record." if attempt != newest else ""
    if heat is None:
        return job
    places = next((each.places for each in job.attempts if each.number == attempt), ())
    wanted = {rank for row in heat.ranks for rank in row}
    return msgspec.structs.replace(job, heat=heat, heat_nodes=nodes_by_rank(places, wanted), heat_note=note)


def _kept_heat(run_directory: str):  # type: ignore[no-untyped-def]
    from robust_run.report.heat import Heat

    try:
        with open(os.path.join(run_directory, HEAT_NAME), "rb") as file:
            return msgspec.json.decode(file.read(64 << 20), type=Heat)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _tail(run_directory: str) -> JournalTail:
    path = os.path.join(run_directory, "journal.jsonl")
    tail = JournalTail(path)
    try:
        tail.catch_up()
    except OSError as error:
        raise PlatformError(f"cannot read {path!r}: {error.strerror}") from error
    return tail


def _write(path: str, content: str) -> str:
    """Write a file as a whole, or not at all. Raises PlatformError."""
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(draft, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
        os.replace(draft, path)
    except OSError as error:
        raise PlatformError(f"cannot write {path!r}: {error.strerror}") from error
    return path
