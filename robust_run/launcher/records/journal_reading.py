"""Reading a journal: of a job that is over, goes on, or goes on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import UserError
from robust_run.launcher.records.journal import JournalEntry, JournalHeader
from robust_run.version import RUN_DIR_SCHEMA


def read(path: str) -> tuple[JournalHeader, list[JournalEntry]]:
    """Return a journal's content. A torn last line (a crash while writing) and a line the disk cut short are skipped.

    Raises UserError for a file that is no journal, or one that a newer robust-run wrote.
    """
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    try:
        schema = msgspec.json.decode(lines[0], type=dict[str, object]).get("schema")
    except msgspec.MsgspecError as error:
        raise UserError(f"{path!r} is not a journal of robust-run: {error}") from error
    if not isinstance(schema, int) or schema > RUN_DIR_SCHEMA:
        raise UserError(f"{path!r} has schema {schema}, this robust-run reads up to {RUN_DIR_SCHEMA}; use a newer one")
    try:
        header = json_decoder(JournalHeader).decode(lines[0])
    except msgspec.MsgspecError as error:
        raise UserError(f"{path!r} is not a journal of robust-run: {error}") from error
    return header, list(_entries(json_decoder(JournalEntry), lines[1:]))


def _entries(decoder: msgspec.json.Decoder[JournalEntry], lines: list[bytes]) -> Iterator[JournalEntry]:
    for line in lines:
        try:
            yield decoder.decode(line)
        except msgspec.MsgspecError:
            continue
