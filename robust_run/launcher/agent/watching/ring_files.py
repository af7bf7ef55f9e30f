"""The files that ranks wrote to, after their attempt: some are kept for timelines, the rest is removed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.files import phases
from robust_run.tracer.files.steps import MARKS_SUFFIX, REDUCED_SUFFIX
from robust_run.tracer.plugin.layout import SUFFIX

#: Newest attempts whose rings are kept in the run directory, half a megabyte a rank.
KEPT_ATTEMPTS = 8


def keep(run_directory: RunDirectory, attempt: int, ranks: Sequence[int]) -> None:
    """Copy the rings to the run directory, for timelines; what cannot be copied is left out."""
    import shutil

    if run_directory.temporary:
        return
    for rank in ranks:
        copy = run_directory.ring_copy(attempt, rank)
        steps_file = run_directory.steps_file(attempt, rank)
        timed = f"{steps_file}{phases.SUFFIX}"
        try:
            if phases.is_used(timed):  # first: a reader that finds the ring looks for it
                shutil.copyfile(timed, phases.beside(copy))
            shutil.copyfile(f"{steps_file}.ring", copy)
        except OSError:
            continue
        old = run_directory.ring_copy(attempt - KEPT_ATTEMPTS, rank)
        for path in (old, phases.beside(old)):
            with suppress(OSError):
                os.unlink(path)


def forget(run_directory: RunDirectory, attempt: int, ranks: Sequence[int]) -> None:
    """Remove what the ranks wrote to: a job that starts again for months must not fill the memory.

    Reports of this attempt stay until the next one is over: what they say last is read after its end.
    """
    for rank in ranks:
        steps_file = run_directory.steps_file(attempt, rank)
        for suffix in ("", ".ring", ".stacks", ".sock", MARKS_SUFFIX, phases.SUFFIX, REDUCED_SUFFIX, SUFFIX):
            with suppress(OSError):
                os.unlink(f"{steps_file}{suffix}")
    earlier = run_directory.reports(attempt - 1)
    if os.path.isdir(earlier):
        import shutil

        shutil.rmtree(earlier, ignore_errors=True)
