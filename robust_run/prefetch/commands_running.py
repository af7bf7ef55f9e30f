"""`robust image record | mount`: programs inside an image, without a job."""

from __future__ import annotations

import os

import click

from robust_run.json_output import print_document
from robust_run.prefetch.commands_shared import as_json_option, cache_option

_RUNS_A_PROGRAM = {"ignore_unknown_options": True, "allow_interspersed_args": False}
bind_option = click.option(
    "--bind", "binds", multiple=True, metavar="SRC[:DST][:ro]", help="Show a folder of the host inside."
)


@click.command(context_settings=_RUNS_A_PROGRAM)
@click.argument("image")
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...")
@bind_option
@click.option("--window", type=click.FloatRange(min=0.1), default=120.0, show_default=True, metavar="SECONDS")
@cache_option
@as_json_option
def record(
    image: str, command: tuple[str, ...], binds: tuple[str, ...], window: float, cache_root: str | None, as_json: bool
) -> int:
    """Run COMMAND inside IMAGE and record what it reads, for `build --from-record` and for launches of the same command.

    Ends with COMMAND's exit code.
    """
    from robust_run.prefetch.running import run_inside
    from robust_run.prefetch.window import sentence

    done = run_inside(image, _program(command), binds, cache_root, record_s=window)
    if as_json:
        print_document({"exit_code": done.exit_code, "kept_at": done.kept_at, "start": done.start})
    elif done.start is not None:
        click.echo(f"robust: {sentence(done.start)}", err=True)
        click.echo(f"robust: recorded in {done.kept_at}" if done.kept_at else "robust: nothing was recorded", err=True)
    else:
        click.echo("robust: nothing was recorded: the image is here and needs no block server", err=True)
    return done.exit_code


@click.command(context_settings=_RUNS_A_PROGRAM)
@click.argument("image")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@bind_option
@cache_option
def mount(image: str, command: tuple[str, ...], binds: tuple[str, ...], cache_root: str | None) -> int:
    """Run COMMAND, or a shell, inside IMAGE. The mount is private and ends with it; no other process sees it."""
    from robust_run.prefetch.running import run_inside

    program = _program(command) or (os.environ.get("SHELL", "/bin/sh"),)
    return run_inside(image, program, binds, cache_root, record_s=None).exit_code


def _program(command: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out the `--` that many put before a program."""
    return command[1:] if command[:1] == ("--",) else command


COMMANDS = (record, mount)
