"""What `--json` prints: one object a call, with `schema`, so that a program can tell what it reads.

Fields are only ever added; `schema` counts changes that an older reader would misunderstand. `_unix_s` ends the names of moments
(seconds since the epoch), `_s` those of durations. What is a list, or may be missing, stands under a name of its own.
"""

from __future__ import annotations

from typing import Any

import click

SCHEMA = 1


def document(value: Any, name: str = "") -> str:
    """Return a value as a document: Structs, dataclasses and dicts with their fields beside `schema`, all else as field `name`.

    `name`: also for an object, where there may be none instead of it (null).
    """
    import msgspec

    encoded = msgspec.json.encode(value)
    fields = {name: msgspec.Raw(encoded)} if name else msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({"schema": SCHEMA} | fields).decode()


def print_document(value: Any, name: str = "") -> None:
    """Print it. See `document`."""
    click.echo(document(value, name))
