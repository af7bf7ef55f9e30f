"""What the commands of `robust ckpt` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from robust_run.terminal import plain

if TYPE_CHECKING:
    from robust_run.ckpt_io.rules.types import Manifest

as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")
also_option = click.option(
    "--also", multiple=True, metavar="ROOT", help="Root of a further target; again for each, in order."
)


def lines(text: Iterable[str]) -> None:
    """Print lines."""
    for line in text:
        say(line)


def say(line: str, *, err: bool = False) -> None:
    """Print a line for people. What it names may come from anybody, and does nothing to a terminal."""
    click.echo(plain(line), err=err)


def check_followed(address: str, also: tuple[str, ...], manifest: Manifest) -> None:
    """Raise UserError if the manifest names a target that may not be followed: that is no damage."""
    from robust_run.ckpt_io.address import parse
    from robust_run.ckpt_io.errors import TargetLost
    from robust_run.ckpt_io.targets import folder_of
    from robust_run.errors import UserError

    for target in range(len(manifest.targets)):
        try:
            folder_of(target, parse(address, also), manifest)
        except TargetLost as error:
            raise UserError(
                f"target {error.target} is named by the manifest, but is not on the manifest's host: "
                "name it with --also ROOT, the folder that it lies in"
            ) from error
