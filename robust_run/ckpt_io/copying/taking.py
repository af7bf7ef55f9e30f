"""Whole files that are taken over into a checkpoint of ours, bit by bit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from robust_run.ckpt_io.copying.sources import PlainFile, PlainSource, read_range
from robust_run.ckpt_io.copying.streams import of_plain
from robust_run.ckpt_io.copying.types import Progress
from robust_run.ckpt_io.rules.types import UNIT_BYTES, Codec, LogicalFile
from robust_run.ckpt_io.saving import FilePiece, FileStream, SavePlan, open_file, open_targets, write_file
from robust_run.store.types import Store

#: Files of one unit or less that are taken over at a time.
_SMALL_FILES = 8
UNCHANGED = "Nothing was saved; convert it when no program writes there any more"


@dataclass(frozen=True)
class Wishes:
    """How it is to be stored."""

    codec: Codec = "none"
    unit_bytes: int = UNIT_BYTES
    step: int | None = None
    """None: what the source says."""


def taken_over(
    source: PlainSource, taken: Sequence[PlainFile], first: int, plan: SavePlan, progress: Progress
) -> list[LogicalFile]:
    """Save files as logical files from number `first` on: small ones many at a time, large ones one after the other."""

    def name_of(file: PlainFile) -> str:
        return _name(plan.where.name, file.path) if source.kind == "file" else file.path

    def whole(index: int, file: PlainFile, targets: Sequence[Store]) -> LogicalFile:
        pieces = [FilePiece(0, memoryview(read_range(source, file, 0, file.size_bytes)))]
        found = write_file(plan, index, name_of(file), pieces, file.size_bytes, threads=1, targets=targets)
        progress(file.size_bytes)
        return found

    with open_targets(plan) as targets, ThreadPoolExecutor(_SMALL_FILES, thread_name_prefix="file") as threads:
        small = {
            index: threads.submit(whole, index, file, targets)
            for index, file in enumerate(taken, first)
            if file.size_bytes <= plan.unit_bytes
        }
        try:
            return [
                small[index].result()
                if index in small
                else written(open_file(plan, index, name_of(file)), of_plain(source, file), progress)
                for index, file in enumerate(taken, first)
            ]
        except BaseException:
            threads.shutdown(cancel_futures=True)
            raise


def _name(wanted: str, path: str) -> str:
    """Return what a single file is called: as the checkpoint, which is shown as that file then, if its kind shows in that."""
    return wanted if os.path.splitext(wanted)[1] == os.path.splitext(path)[1] else path


def written(stream: FileStream, windows: Iterator[memoryview], progress: Progress) -> LogicalFile:
    """Write windows of a file to a stream, front to back, and end it. Nothing of it stays where that fails."""
    try:
        for window in windows:
            stream.write(window)
            progress(len(window))
        return stream.finish()
    except BaseException:
        stream.abort()
        raise
