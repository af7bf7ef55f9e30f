"""What the commands of `robust ckpt` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")
also_option = click.option(
    "--also", multiple=True, metavar="ROOT", help="Root of a further target; again for each, in order."
)


def lines(text: Iterable[str]) -> None:
    """Print lines."""
    for line in text:
        click.echo(line)


def encoded(value: Any) -> str:
    """Return JSON; of dataclasses and Structs alike."""
    import msgspec

    return msgspec.json.encode(value).decode()
