"""Reads the facts of a run from its run directory: its journal line by line, its incidents, how it ended, whether it lives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError
from robust_run.fleet.words import RunFacts, State
from robust_run.launcher.operator.pages.page_reading import saved_in
from robust_run.launcher.operator.reading.incident_reading import read_incidents
from robust_run.launcher.operator.reading.runs import JOURNAL_NAME
from robust_run.launcher.operator.views.facts.build import Known, facts_of_run
from robust_run.launcher.operator.views.facts.fold import RunFold
from robust_run.launcher.records.journal import is_claimed
from robust_run.launcher.records.journal_reading import follow
from robust_run.launcher.records.outcome import left
from robust_run.report.files import open_regular
from robust_run.report.files import usage as usage_file

#: A journal of our largest jobs has some hundred MiB. A larger one would hold up all others.
LARGEST_JOURNAL_BYTES = 4 << 30
#: usage.json is written each minute while an attempt runs. Clocks of machines, and of file servers, differ by less.
LATELY_S = 600.0


class EmptyJournalError(PlatformError):
    """Nothing had happened yet in a run."""


class JournalTooLargeError(PlatformError):
    """No job of ours writes so much."""


class Controller(msgspec.Struct, frozen=True, kw_only=True):
    """The controller of a run whose end is not on record, as far as its journal says."""

    run_directory: str
    host: str
    """Of the newest one."""
    pid: int
    """0: not known, of one that has taken over."""
    began_s: float
    now_s: float
    """When that is asked."""


Lives = Callable[[Controller], bool]
"""Returns whether a controller lives. False where that cannot be shown: nothing is done by it."""


def read_facts(run_directory: str, now_s: float, lives: Lives) -> RunFacts:
    """Return the facts of a run. `now_s`: seconds since the epoch.

    Raises UserError for a journal that is none or of a newer version, PlatformError for what cannot be read.
    """
    place = os.path.abspath(run_directory)
    path = os.path.join(place, JOURNAL_NAME)
    try:
        fold = _read_journal(path)
    except OSError as error:
        raise PlatformError(f"cannot read {path!r}: {error.strerror or error}") from error
    found = read_incidents(place, len(fold.on_record.found), fold.on_record.found)
    return facts_of_run(fold, found.incidents, _known(place, fold, now_s, lives))


def _read_journal(path: str) -> RunFold:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGEST_JOURNAL_BYTES:
            raise JournalTooLargeError(
                f"{path!r} has {size >> 30} GiB, and a journal at most {LARGEST_JOURNAL_BYTES >> 30} GiB: it is left out"
            )
        header, entries = follow(file, path)
        fold = RunFold(header)
        for entry in entries:
            fold.take(entry)
    if fold.history.begun_s is None:
        raise EmptyJournalError(f"{path!r} has nothing but its first line: the job had not begun")
    return fold


def _known(place: str, fold: RunFold, now_s: float, lives: Lives) -> Known:
    history = fold.history
    last_s = history.last_s if history.last_s is not None else now_s
    outcome, until_s = history.outcome, history.finished_s if history.finished_s is not None else last_s
    gap_s = 0.0
    if not outcome and (mark := left(place)) is not None and mark[1] >= fold.began_again_s:
        outcome, gap_s = mark[0].outcome, max(mark[1] - last_s, 0.0)
    state: State = outcome or "lost"  # type: ignore[assignment]
    if not outcome and lives(_controller(place, fold, now_s)):
        state, until_s = "live", max(now_s, last_s)
    folder = fold.spec.ckpt_dir
    points = usage_file.read(os.path.join(place, usage_file.NAME))
    return Known(
        place=place,
        state=state,
        until_s=until_s,
        outcome=outcome,
        gap_s=gap_s,
        folder=saved_in(folder) if folder and os.path.isabs(folder) else (),
        has_gpus=any(name.startswith("gpu") for point in points for name in point.spreads),
    )


def _controller(place: str, fold: RunFold, now_s: float) -> Controller:
    header = fold.header
    return Controller(
        run_directory=place,
        host=fold.resumed_host or header.host,
        pid=0 if fold.resumed_host else header.pid,
        began_s=fold.history.begun_s or 0.0,
        now_s=now_s,
    )


def lives_here(env: Mapping[str, str]) -> Lives:
    """Return what looks from this machine whether a controller lives: it holds its journal, or it answers.

    One on another machine is not asked: it may listen there alone, and a folder may have hundreds that are gone. It lives if
    it has written lately, as each does whose job has an attempt; so one that died counts as living so long, and one that waits
    for nodes may count as gone. Nothing is done by it, and it is looked at anew the next time.
    """

    def lives(controller: Controller) -> bool:
        if is_claimed(os.path.join(controller.run_directory, JOURNAL_NAME)):
            return True
        from robust_run.launcher.operator.reading.client import NoAnswerError, reach, this_machine
        from robust_run.launcher.operator.reading.life_signs import may_be, place_of

        here, place = this_machine(), place_of(controller.run_directory)
        if (controller.host if place is None else place.host) != here.host or (place and not here.has(place)):
            return _has_written_lately(controller)
        if place is None:
            return may_be(controller.pid, controller.began_s)
        try:
            reach(controller.run_directory, "", "", env, here)
        except NoAnswerError as error:
            return not error.refused and _has_written_lately(controller)
        except PlatformError:
            return True  # it says no
        return True

    return lives


def _has_written_lately(controller: Controller) -> bool:
    """Whether a controller has written its journal, or how busy its nodes are, so lately that it may well live."""
    for name in (JOURNAL_NAME, usage_file.NAME):
        with suppress(OSError):
            if os.stat(os.path.join(controller.run_directory, name)).st_mtime > controller.now_s - LATELY_S:
                return True
    return False


def nobody_lives(_: Controller) -> bool:
    """Return that no controller lives, of runs that are known to be over."""
    return False
