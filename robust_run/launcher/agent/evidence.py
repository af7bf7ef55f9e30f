"""Evidence of a rank that has ended: its exit, its last words, its error file, its steps."""

from __future__ import annotations

import os
import stat

import msgspec

from robust_run.health.types import Finding
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.core.diagnosis.verdict import DYING_S
from robust_run.launcher.model.events import RankExited
from robust_run.launcher.model.job import RankEvidence
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.files.steps import StepCount
from robust_run.tracer.files.steps import read as read_steps

#: Bytes of stderr that travel with the evidence; what was classified is longer.
TAIL_BYTES = 4096
#: Of the log of a rank that has not ended.
LAST_WORDS_BYTES = 64 * 1024

#: An interpreter that takes longer to end after what it raised goes on, as far as we know.
LONGEST_END_S = 60.0

#: An error file larger than this is not the one torch's @record writes.
LARGEST_ERROR_FILE_BYTES = 1 << 20


def gather(
    worker: Worker, attempt: int, run_directory: RunDirectory, stderr: str, spoke_at_s: float | None
) -> RankEvidence:
    """Return all that is known of a rank; `stderr` is the end of what it printed."""
    rank = worker.rank
    logs = run_directory.logs_of(attempt, rank)
    path = os.path.join(logs, "stderr.log") if logs else ""
    steps = read_steps(run_directory.steps_file(attempt, rank))
    ended_at_s = worker.exited_at_s if worker.signalled_at_s is None else worker.signalled_at_s
    raised_at_s = last_raised(steps, worker.exit_code, ended_at_s) if steps else None
    finding = find(run_directory.error_file(attempt, rank), stderr, worker.exit_code if raised_at_s is None else 1)
    if finding is not None and raised_at_s is None and is_outlived(finding, worker.exit_code, spoke_at_s, ended_at_s):
        finding = None
    return RankEvidence(
        rank=rank,
        pid=worker.pid,
        exit_code=worker.exit_code,
        exited_at_s=worker.exited_at_s,
        signalled_at_s=worker.signalled_at_s,
        spoke_at_s=spoke_at_s,
        raised_at_s=raised_at_s,
        finding=finding,
        had_ended=was_cleaning_up(steps, worker.exit_code, finding),
        steps=steps.steps if steps else None,
        stderr_path=os.path.relpath(path, run_directory.path) if path else "",
        stderr_tail=stderr[-TAIL_BYTES:],
    )


def seen_at_once(exited: RankExited, run_directory: RunDirectory, stderr: str) -> RankExited:
    """Return a failed rank's end with what is seen of it by then."""
    place = (exited.attempt, exited.rank)
    finding = find(run_directory.error_file(*place), stderr, exited.exit_code)
    had_ended = was_cleaning_up(read_steps(run_directory.steps_file(*place)), exited.exit_code, finding)
    return msgspec.structs.replace(exited, finding=finding, had_ended=had_ended)


def had_ended(worker: Worker, steps_file: str, evidence: RankEvidence | None) -> bool:
    """Whether the program of a rank that is gone had come to its end before the rank died of a signal."""
    if evidence is not None:
        return evidence.had_ended
    return was_cleaning_up(read_steps(steps_file), worker.exit_code, None)


def was_cleaning_up(steps: StepCount | None, exit_code: int | None, finding: Finding | None) -> bool:
    """Whether a rank died of a signal when its program had come to its end, by its interpreter (see `tracer/arm/ending.py`).

    One that shows an exception may have ended by it, whatever its interpreter knows.
    """
    shows_exception = finding is not None and bool(finding.exception)
    has_noted = steps is not None and steps.ended_monotonic_s is not None
    return exit_code is not None and exit_code < 0 and has_noted and not shows_exception


def last_raised(steps: StepCount, exit_code: int | None, ended_at_s: float) -> float | None:
    """Return when a rank raised what ended it, by its interpreter; None: nothing did, or the program has gone on.

    C code may show an exception as the interpreter does at its end, and go on: then steps follow, or the end is far.
    """
    at_s, stepped_s = steps.raised_monotonic_s, steps.last_step_monotonic_s
    if (
        at_s is None
        or exit_code == 0
        or ended_at_s - at_s > LONGEST_END_S
        or (stepped_s is not None and stepped_s > at_s)
    ):
        return None
    return at_s


def is_outlived(finding: Finding, exit_code: int | None, spoke_at_s: float | None, ended_at_s: float) -> bool:
    """Whether the program went on after what it said: then that is not why it ended.

    A program that raises does not die of SIGKILL for it, and with any end but Python's own (1) a traceback must be recent.
    """
    if exit_code == 1 or finding.kind in ("usage", "native_crash", "peer_connection"):
        return False
    if exit_code == -9 and finding.kind == "exception":
        return True
    return spoke_at_s is not None and ended_at_s - spoke_at_s > DYING_S


def end_of(path: str) -> str:
    """Return the end of a log; empty if it is not there or no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, LAST_WORDS_BYTES, max(0, size - LAST_WORDS_BYTES)).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def find(error_file: str, stderr: str, exit_code: int | None) -> Finding | None:
    """Return what a failed rank shows: its error file says it best, its stderr next. None for one that did well."""
    if exit_code == 0:
        return None
    from robust_run.health.output import classify  # its patterns take milliseconds, and only a failure needs them

    return _from_file(error_file) or classify(stderr, exit_code)


def _from_file(path: str) -> Finding | None:
    from robust_run.health.output import from_error_file

    text = _read_plain_file(path)
    return from_error_file(text) if text else None


def _read_plain_file(path: str) -> str:
    """Return a file's beginning, empty if it is not there or no plain file: a worker can put a pipe in its place."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(LARGEST_ERROR_FILE_BYTES)


def hand_up_error_file(path: str, exit_code: int, target: str | None) -> None:
    """Copy the culprit's error file to the launcher's own TORCHELASTIC_ERROR_FILE, with its exit code, as torchrun does.

    Nothing happens where either is missing; an unwritable target is the business of who set it, not of the job.
    """
    if not target:
        return
    import json

    try:
        content = json.loads(_read_plain_file(path))
        if isinstance(content, dict) and isinstance(content.get("message"), dict):
            content["message"]["errorCode"] = exit_code
        with open(target, "w", encoding="utf-8") as file:
            json.dump(content, file)
    except (OSError, ValueError):
        return
