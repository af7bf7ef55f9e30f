"""Reading a journal: of a job that is over, goes on, or goes on elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from robust_run.decoders import json_decoder
from robust_run.errors import UserError
from robust_run.launcher.records.journal import Journal, JournalEntry, JournalHeader, in_force
from robust_run.version import RUN_DIR_SCHEMA

#: No line of ours is longer: a start of 10,000 nodes has 2 MB.
LONGEST_LINE_BYTES = 16 << 20
#: What is larger is no journal, whoever says so.
LARGEST_BYTES = 2 << 30


class NoJournalError(UserError):
    """The file is no journal of robust-run."""


class NewerJournalError(UserError):
    """A newer version of robust-run wrote it."""


def read(path: str) -> tuple[JournalHeader, list[JournalEntry]]:
    """Return a journal's content. A torn last line (a crash while writing) and a line the disk cut short are skipped.

    Raises UserError for a file that is no journal, or one that a newer robust-run wrote.
    """
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    return header_of(lines[0], path), list(_entries(json_decoder(JournalEntry), lines[1:]))


def refuse_oversized(path: str) -> None:
    """Raise NoJournalError for what is larger than any journal, and would have to be read as a whole."""
    size = os.path.getsize(path)
    if size > LARGEST_BYTES:
        raise NoJournalError(
            f"{path!r} is not a journal of robust-run: it has {size} bytes, the limit is {LARGEST_BYTES}"
        )


def past_of(journal: Journal) -> list[JournalEntry]:
    """Return what is on record and in force, for a controller that continues and writes on. Raises UserError, see `read`."""
    journal.end_torn_line()
    _, entries = read(journal.path)
    return list(in_force(entries))


def header_of(line: bytes, path: str) -> JournalHeader:
    """Return what a journal's first line says. Raises UserError for one that is none, or that a newer robust-run wrote."""
    if not line:
        raise NoJournalError(f"{path!r} is not a journal of robust-run: it is empty")
    try:
        schema = msgspec.json.decode(line, type=dict[str, object]).get("schema")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoJournalError(f"{path!r} is not a journal of robust-run: {error}") from error
    if not isinstance(schema, int):
        raise NoJournalError(f"{path!r} is not a journal of robust-run: its first line has no schema")
    if schema > RUN_DIR_SCHEMA:
        raise NewerJournalError(
            f"{path!r} has schema {schema}, this robust-run reads up to {RUN_DIR_SCHEMA}; use a newer one"
        )
    try:
        return json_decoder(JournalHeader).decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoJournalError(f"{path!r} is not a journal of robust-run: {error}") from error


def follow(file: BinaryIO, path: str) -> tuple[JournalHeader, Iterator[JournalEntry]]:
    """Return a journal's first line, and the others as they are read: a journal may be large. A line that is longer than
    `LONGEST_LINE_BYTES` is skipped as a torn one is, and so is one that is being written.

    Raises UserError as `read` does, and OSError.
    """
    first = file.readline(LONGEST_LINE_BYTES)
    header = header_of(first, path)
    decoder = json_decoder(JournalEntry)
    return header, (entry for line in _lines(file) for entry in _entries(decoder, [line]))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(LONGEST_LINE_BYTES):
        if line.endswith(b"\n"):
            yield line
        else:
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE_BYTES)


def _entries(decoder: msgspec.json.Decoder[JournalEntry], lines: list[bytes]) -> Iterator[JournalEntry]:
    for line in lines:
        try:
            yield decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
