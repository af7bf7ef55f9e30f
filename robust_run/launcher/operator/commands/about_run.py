"""What commands about one run share: which run is meant, JSON or lines, and how lines are printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_run(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return what a shell completes RUN to: names of runs, or folders where a path is begun."""
    from click.shell_completion import CompletionItem

    from robust_run.launcher.operator.reading.runs import names_beginning

    if os.sep in begun:
        return [CompletionItem(begun, type="dir")]
    return [CompletionItem(name) for name in names_beginning(begun, context.params.get("log_dir") or "", os.environ)]


def about_a_run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every command has: which run, and how to reach it."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="As JSON."),
        click.option("--tls-ca", default="", metavar="FILE", help="CA of the controller's certificate (PEM)."),
        click.option("--token-file", default="", metavar="FILE", help="The job's token, for --url."),
        click.option(
            "--url", default="", metavar="URL", help="Address of the controller, to ask from another machine."
        ),
        click.option("--log-dir", default="", metavar="FOLDER", help="Folder of the runs (default: ./robust-runs)."),
        click.argument("run", default="", metavar="[RUN]", shell_complete=complete_run),
    ):
        command = decorate(command)
    return command


def has_colours(stream: IO[str], env: Mapping[str, str]) -> bool:
    """Whether colours may be used: on a terminal that knows them, unless NO_COLOR says no (https://no-color.org)."""
    return stream.isatty() and not env.get("NO_COLOR") and env.get("TERM") != "dumb"


def show_lines(lines: Any) -> None:
    """Print lines, nothing where there are none."""
    text = "\n".join(lines)
    if text:
        click.echo(text)
