"""`robust top`. Its body imports what it needs: `robust` must start fast."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from robust_run.json_output import print_document
from robust_run.launcher.operator.commands.about_run import about_a_run, has_colours

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.console import Console, RenderableType

    from robust_run.launcher.operator.views.live import LiveView

#: Columns of a screen that is no terminal.
PLAIN_WIDTH = 120


@click.command()
@about_a_run
def top(as_json: bool, **which: str) -> int:
    """Watch a job on the terminal: keys are shown below. Piped, it prints one screen and ends. RUN as for `robust status`."""
    from robust_run.launcher.operator.reading.which import subject
    from robust_run.launcher.operator.top.screen import plain

    about = subject(os.environ, **which)
    if as_json:
        print_document(about.live())
        return 0
    if not is_for_keys(os.environ):
        print_once(lambda width: plain(about.live(count=40), width), os.environ)
        return 0
    from robust_run.launcher.operator.commands.top_loop import OF_A_JOB, watch
    from robust_run.launcher.operator.reading.client import NoAnswerError

    def fetch(first: int, count: int) -> LiveView:
        nonlocal about
        try:
            return about.live(first, count)
        except NoAnswerError:  # it ended, or another controller took over
            about = subject(os.environ, **which)
            return about.live(first, count)

    watch(fetch, terminal(os.environ), sys.stdin.fileno(), OF_A_JOB)
    return 0


def is_for_keys(env: Mapping[str, str]) -> bool:
    """Whether there is a terminal to show a screen on, and to read keys from."""
    return sys.stdout.isatty() and sys.stdin.isatty() and env.get("TERM") != "dumb"


def terminal(env: Mapping[str, str]) -> Console:
    """Return the terminal."""
    from rich.console import Console

    return Console(highlight=False, emoji=False, no_color=not has_colours(sys.stdout, env))


def print_once(draw: Callable[[int], RenderableType], env: Mapping[str, str]) -> None:
    """Print what is drawn for a width, without colours or keys."""
    from rich.console import Console

    width = int(env["COLUMNS"]) if env.get("COLUMNS", "").isdigit() else PLAIN_WIDTH
    width = max(min(width, 1000), 40)
    console = Console(width=width, color_system=None, highlight=False, emoji=False, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(width))
    click.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
