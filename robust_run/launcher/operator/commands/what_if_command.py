"""What `robust report --what-if` does: how long steps would take without what is slow, of a job or of a trace in a file."""

from __future__ import annotations

import os

import click

from robust_run.errors import PlatformError
from robust_run.json_output import print_document
from robust_run.report.what_if import from_steps, operations, reading
from robust_run.report.what_if.text import lines_of
from robust_run.report.what_if.types import WhatIf
from robust_run.terminal import plain

#: From here on people are told that it takes its time.
MANY_OPS = 300_000


def what_if_report(run: str, attempt: int | None, *, log_dir: str, as_json: bool) -> int:
    """Show it. `run`: a run, or a file with a trace. Raises UserError, PlatformError."""
    found = of_file(run) if os.path.isfile(run) else of_job(run, attempt, log_dir)
    if as_json:
        print_document({"what_if": found, "slowdown": round(found.slowdown, 4), "lines": lines_of(found)})
    else:
        for line in lines_of(found):
            click.echo(plain(line))
    return 0


def of_file(path: str) -> WhatIf:
    """Return what came of a trace of operations, and say on stderr what takes long. Raises UserError."""
    ops = reading.read(path)
    if len(ops) >= MANY_OPS:
        click.echo(f"robust: {len(ops)} operations are replayed again and again; that takes some minutes", err=True)
    return operations.what_if(ops)


def of_job(run: str, attempt: int | None, log_dir: str) -> WhatIf:
    """Return what came of the newest steps that the rings of an attempt hold. Raises UserError, PlatformError."""
    from robust_run.launcher.operator.commands import pictures
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.report.heat import own_ms_of_all, step_ms_of
    from robust_run.tracer.pace.stages import layout_of, stages

    about = subject(os.environ, run=run, log_dir=log_dir, url="", token_file="", tls_ca="")
    if about.is_alive and attempt is None:
        pictures.have_copied(about)
    attempt = pictures.newest_with_rings(about.folder) if attempt is None else attempt
    traces = pictures.read_rings(about.folder, attempt)
    if not traces:
        raise PlatformError(
            f"no rank of attempt {attempt} left a trace here: it ran with ROBUST_TRACE=0, or elsewhere, or its launcher was "
            "killed, and the traces went with it"
        )
    first = min(traces, key=lambda trace: trace.rank)
    members = stages([trace.rank for trace in traces], *layout_of(traces))
    return from_steps.what_if(own_ms_of_all(traces)[0], step_ms_of(first), members)
