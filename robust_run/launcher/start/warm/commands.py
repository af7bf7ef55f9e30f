"""`robust warm`: a warm process for the jobs of this user on this node."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import click

from robust_run.clock import seconds_of
from robust_run.errors import UserError
from robust_run.json_output import print_document

if TYPE_CHECKING:
    from robust_run.launcher.start.warm.manage import WarmSeen


@click.group()
def warm() -> None:
    """Keep a process with torch imported, from which the jobs of this user on this node start."""


@warm.command()
@click.option("--preload", default="torch,torch.distributed", show_default=True, metavar="MODULE,...")
@click.option(
    "--idle-limit",
    default="8h",
    show_default=True,
    metavar="TIME",
    help="End after this long without a job: 90s, 30m, 8h, 2d, or never.",
)
@click.option("--one-worker", is_flag=True, help="For jobs of one worker: OMP_NUM_THREADS stays unset.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground; end with this command.")
def start(preload: str, idle_limit: str, one_worker: bool, foreground: bool) -> int:
    """Start a warm process for jobs like those started here. It ends itself after --idle-limit without a job."""
    from robust_run.launcher.start.warm import manage

    modules = tuple(dict.fromkeys(name.strip() for name in preload.split(",") if name.strip()))
    started = manage.start(
        os.environ, modules, parse_duration_s(idle_limit), one_worker=one_worker, foreground=foreground
    )
    if foreground and started.process is not None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(started.pid, number))
    for module in started.skipped:
        click.echo(f"robust: --preload: left out {module}", err=True)
    if started.was_there:
        click.echo(f"robust: a warm process runs already (pid {started.pid})")
    else:
        click.echo(
            f"robust: warm process {started.pid} has imported {', '.join(started.modules)} ({started.took_s:.1f} s)"
        )
    if foreground and started.process is not None:
        code = started.process.wait()
        return 128 - code if code < 0 else code
    return 0


@warm.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--explain", is_flag=True, help="Say whether jobs started here would use it.")
def status(as_json: bool, explain: bool) -> int:
    """Show the warm processes, a line each; exit code 1 if there is none."""

    from robust_run.launcher.start.warm import manage

    seen = manage.survey(os.environ)
    if as_json:
        print_document(seen, "processes")
    elif not seen:
        click.echo("robust: no warm process runs; robust warm start starts one", err=True)
    else:
        for each in seen:
            for line in _lines(each, explain):
                click.echo(line)
    return 0 if seen else 1


@warm.command()
@click.argument("pids", nargs=-1, type=int, metavar="[PID]...")
@click.option("--all", "everyone", is_flag=True, help="All of them.")
def stop(pids: tuple[int, ...], everyone: bool) -> int:
    """End warm processes. Jobs that were started from them go on."""
    from robust_run.launcher.start.warm import manage

    stopped = manage.stop_found(os.environ, pids, everyone=everyone)
    for pid, gone in stopped:
        click.echo(
            f"robust: warm process {pid} " + ("ended" if gone else "takes no more jobs and ends with its last one")
        )
    if not stopped:
        click.echo("robust: no warm process runs", err=True)
    return 0 if stopped else 1


def parse_duration_s(text: str) -> float | None:
    """Return the seconds of `90s`, `30m`, `8h`, `2d` or a bare number; None for `never`. Raises UserError."""
    word = text.strip().lower()
    if word == "never":
        return None
    seconds = seconds_of(word)
    if not 0 < seconds < 1e9:
        raise UserError(f"--idle-limit {text!r} is no time; write 90s, 30m, 8h, 2d or never")
    return seconds


def _lines(seen: WarmSeen, explain: bool) -> list[str]:
    facts = [f"pid {seen.pid}" if seen.pid > 0 else "in another container, or outside of this one", seen.state]
    if seen.running:
        facts.append(f"{len(seen.running)} job{'s' if len(seen.running) > 1 else ''} ({', '.join(seen.running)})")
    if seen.age_s is not None:
        facts.append(f"started {_duration(seen.age_s)} ago")
    if seen.idle_s is not None and not seen.running:
        limit = f" of {_duration(seen.idle_limit_s)}" if seen.idle_limit_s else ""
        facts.append(f"idle {_duration(seen.idle_s)}{limit}")
    if seen.served is not None:
        facts.append(f"{seen.served} served")
    if seen.memory_bytes is not None:
        facts.append(f"{seen.memory_bytes >> 20} MiB")
    if seen.modules:
        threads = f", OMP_NUM_THREADS={seen.omp_num_threads}" if seen.omp_num_threads else ""
        facts.append(f"{seen.executable} with {', '.join(seen.modules)}{threads}")
    else:
        facts.append(f"robust-run {seen.version}")
    lines = [", ".join(facts[:2]) + "".join(f", {fact}" for fact in facts[2:])]
    if explain:
        for who, reason in (("several workers", seen.not_used), ("one worker", seen.not_used_by_one_worker)):
            lines.append(f"  jobs of {who} started here {f'do not use it: {reason}' if reason else 'use it'}")
    return lines


def _duration(seconds: float) -> str:
    for unit, length_s in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"
