"""What was said of machines that stood out in a run, live or over: from the journal in its directory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from robust_run.errors import UserError

MOST_LINE_BYTES = 4 << 20
_WORDS = (b'"outlier.', b'"node_joined"')


class _Named(msgspec.Struct):
    id: str
    name: str


class _Joined(msgspec.Struct, tag="node_joined"):
    node: _Named


class _Said(msgspec.Struct):
    name: str
    detail: str
    kind: str = "alert"


class _Seen(msgspec.Struct, tag="health_seen"):
    node: str
    event: _Said
    at_unix_s: float = 0.0


class _Line(msgspec.Struct):
    event: _Joined | _Seen


class Standout(msgspec.Struct, frozen=True, kw_only=True):
    """One machine that stood out."""

    machine: str
    metric: str
    detail: str
    at_unix_s: float


def standouts(run_directory: str) -> Iterator[Standout]:
    """Yield who stood out, oldest first. Raises UserError for a folder that is no run directory."""
    path = os.path.join(run_directory, "journal.jsonl")
    decoder = msgspec.json.Decoder(_Line)
    names: dict[str, str] = {}
    try:
        with open(path, "rb") as file:
            while line := file.readline(MOST_LINE_BYTES):
                if not any(word in line for word in _WORDS):
                    continue
                try:
                    event = decoder.decode(line).event
                except msgspec.MsgspecError:
                    continue
                if isinstance(event, _Joined):
                    names[event.node.id] = event.node.name
                elif event.event.kind == "alert" and event.event.name.startswith("outlier."):
                    metric = event.event.name.removeprefix("outlier.").removeprefix("stays.")
                    name = names.get(event.node, event.node)
                    yield Standout(machine=name, metric=metric, detail=event.event.detail, at_unix_s=event.at_unix_s)
    except OSError as error:
        raise UserError(f"{run_directory} is no run directory: {path}: {error.strerror}") from None
