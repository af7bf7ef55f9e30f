"""`robust image record | mount`: programs inside an image, without a job."""

from __future__ import annotations

import os

import click

from robust_run.json_output import print_document
from robust_run.prefetch.commands_shared import as_json_option, cache_option


class RunsProgram(click.Command):
    """A command `IMAGE COMMAND...`: its options stand before or after IMAGE; from COMMAND, or `--`, on all is the program's."""

    allow_interspersed_args = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See click. Moves the options that follow IMAGE before it."""
        own: list[str] = []
        image: list[str] = []
        at = 0
        while at < len(args) and args[at] != "--" and not (image and not _is_option(args[at])):
            if _is_option(args[at]):
                count = 2 if self._takes_next(args[at]) else 1
                own += args[at : at + count]
            else:
                image, count = [args[at]], 1
            at += count
        return super().parse_args(ctx, [*own, *image, *args[at:]])

    def _takes_next(self, word: str) -> bool:
        """Whether the value of an option is the next word."""
        found = next((each for each in self.params if word in each.opts), None)
        return isinstance(found, click.Option) and not found.is_flag


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


bind_option = click.option(
    "--bind", "binds", multiple=True, metavar="SRC[:DST][:ro]", help="Show a folder of the host inside."
)


@click.command(cls=RunsProgram)
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

    done = run_inside(image, program_of(command), binds, cache_root, record_s=window)
    if as_json:
        print_document({"exit_code": done.exit_code, "kept_at": done.kept_at, "start": done.start})
    elif done.start is not None:
        click.echo(f"robust: {sentence(done.start)}", err=True)
        click.echo(f"robust: recorded in {done.kept_at}" if done.kept_at else "robust: nothing was recorded", err=True)
    else:
        click.echo("robust: nothing was recorded: the image is here and needs no block server", err=True)
    return done.exit_code


@click.command(cls=RunsProgram)
@click.argument("image")
@click.argument("command", nargs=-1, metavar="[COMMAND]...")
@bind_option
@cache_option
def mount(image: str, command: tuple[str, ...], binds: tuple[str, ...], cache_root: str | None) -> int:
    """Run COMMAND, or a shell, inside IMAGE. The mount is private and ends with it; no other process sees it."""
    from robust_run.prefetch.running import run_inside

    program = program_of(command) or (os.environ.get("SHELL", "/bin/sh"),)
    return run_inside(image, program, binds, cache_root, record_s=None).exit_code


def program_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """Leave out the `--` that many put before a program."""
    return command[1:] if command[:1] == ("--",) else command


COMMANDS = (record, mount)
