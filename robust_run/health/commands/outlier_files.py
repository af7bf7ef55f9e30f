"""Rows from CSV, JSON lines and Parquet, one at a time."""

from __future__ import annotations

import csv
import errno
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, BinaryIO

from robust_run.errors import PlatformError, UserError
from robust_run.health.outliers.rows import MOST_LINE_BYTES, Columns, MachineRow, Oddities, check_columns, to_row

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_GROUP_BYTES = 2 << 30
BATCH_ROWS = 4096


def open_rows(path: str, kind: str, columns: Columns, oddities: Oddities, stdin: BinaryIO) -> Iterator[MachineRow]:
    """Yield the rows of a file, or of standard input for `-`.

    Args:
        path: the file.
        kind: csv, jsonl, parquet, or auto: by the name's ending; standard input is jsonl.
        columns: how the columns that are no metrics are called.
        oddities: what is passed over is counted here.
        stdin: what `-` reads.

    Raises:
        UserError: it holds something else than rows of metrics.
        PlatformError: it cannot be read.
    """
    if kind == "auto":
        kind = "jsonl" if path == "-" else _kind_of(path)
    if kind == "parquet":
        yield from _parquet(path, columns, oddities)
        return
    read = _csv if kind == "csv" else _jsonl
    if path == "-":
        yield from read(stdin, "standard input", columns, oddities)
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed below; a with would take what is raised while reading for opening
    except OSError as error:
        raise PlatformError(f"{path}: {error.strerror}") from None
    with file:
        yield from read(file, path, columns, oddities)


def _kind_of(path: str) -> str:
    ending = path.rpartition(".")[2].lower()
    kinds = {"csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl", "json": "jsonl", "parquet": "parquet", "pq": "parquet"}
    if ending not in kinds:
        if not os.path.exists(path):
            raise PlatformError(f"{path}: {os.strerror(errno.ENOENT)}")
        raise UserError(
            f"{path}: what is it? the name ends in none of {', '.join(kinds)}; say --format csv, jsonl or parquet"
        )
    return kinds[ending]


def _lines(file: BinaryIO, source: str) -> Iterator[tuple[str, str]]:
    """Yield each line with where it is. No line is held that is longer than the limit."""
    number = 0
    while True:
        try:
            line = file.readline(MOST_LINE_BYTES + 1)
        except OSError as error:
            raise PlatformError(f"{source}: {error.strerror}") from None
        if not line:
            return
        number += 1
        where = f"{source} line {number}"
        if len(line) > MOST_LINE_BYTES:
            raise UserError(f"{where}: longer than {MOST_LINE_BYTES >> 20} MiB; is this a file of metrics?")
        if b"\0" in line:
            raise UserError(f"{where}: binary data; is this a file of metrics?")
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{where}: not UTF-8; is this a file of metrics?") from None
        if text.strip():
            yield text, where


def _csv(file: BinaryIO, source: str, columns: Columns, oddities: Oddities) -> Iterator[MachineRow]:
    header: list[str] = []
    for text, where in _lines(file, source):
        try:
            cells = next(csv.reader([text], strict=True))
        except csv.Error as error:
            raise UserError(f"{where}: {error}") from None
        if not header:
            header = [cell.strip() for cell in cells]
            if len(set(header)) < len(header):
                raise UserError(f"{where}: two columns have the same name")
            check_columns(header, columns, source)
        elif len(cells) != len(header):
            raise UserError(f"{where}: {len(cells)} cells, the header has {len(header)}")
        else:
            yield to_row(dict(zip(header, cells, strict=True)), columns, where, oddities)


def _jsonl(file: BinaryIO, source: str, columns: Columns, oddities: Oddities) -> Iterator[MachineRow]:
    import msgspec

    decoder = msgspec.json.Decoder(dict[str, float | int | str | bool | None])
    for text, where in _lines(file, source):
        try:
            cells = decoder.decode(text)
        except (msgspec.DecodeError, RecursionError):
            wanted = f'{{"{columns.time}": 12.0, "{columns.machine}": "node-1", "cpu_percent": 31.5}}'
            raise UserError(f"{where}: no flat JSON object; a line looks like {wanted}") from None
        check_columns(cells, columns, where)
        yield to_row(cells, columns, where, oddities)


def _parquet(path: str, columns: Columns, oddities: Oddities) -> Iterator[MachineRow]:
    try:
        pyarrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(
            "Parquet needs pyarrow, which is not installed; pip install pyarrow, or convert to CSV"
        ) from None
    if path == "-":
        raise UserError("Parquet cannot be read from standard input; name the file")
    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            check_columns(file.schema_arrow.names, columns, path)
            for group in range(file.metadata.num_row_groups):
                if file.metadata.row_group(group).total_byte_size > MOST_GROUP_BYTES:
                    raise UserError(
                        f"{path}: row group {group} has more than {MOST_GROUP_BYTES >> 30} GiB; write smaller ones"
                    )
            number = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                for cells in batch.to_pylist():
                    number += 1
                    yield to_row(cells, columns, f"{path} row {number}", oddities)
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: no readable Parquet file: {str(error).splitlines()[0][:200]}") from None
    except OSError as error:
        raise PlatformError(f"{path}: {error.strerror or str(error)[:200]}") from None
