"""From a record of a start to the order of files in an image.

A hot list names ranges of an image's bytes; `tree` says which files lie there. The hottest are the first read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from robust_run.prefetch.image.tree import PackedFile
from robust_run.prefetch.rules.types import HotList

#: mksquashfs knows priorities from -32768 to 32767; files of the highest come first, all others have 0.
_HIGHEST = 32767


def hot_files(hot: HotList, files: Iterable[PackedFile]) -> list[str]:
    """Return the files of an image that a hot list of it touches, the first touched first. Pure."""
    ranges = sorted(
        (each.start * hot.quantum_bytes, each.count * hot.quantum_bytes, each.first_touch_ms) for each in hot.ranges
    )
    starts = [start for start, _length, _ms in ranges]
    touched: list[tuple[int, int, str]] = []
    for file in files:
        first_ms = _first_touch(file, ranges, starts)
        if first_ms is not None:
            touched.append((first_ms, file.offset_bytes, file.path))
    return [path for _ms, _offset, path in sorted(touched)]


def _first_touch(file: PackedFile, ranges: list[tuple[int, int, int]], starts: list[int]) -> int | None:
    """Ranges do not overlap, so only the one before the file and those that begin in it can touch it."""
    at = max(0, bisect.bisect_right(starts, file.offset_bytes) - 1)
    first: int | None = None
    while at < len(ranges) and ranges[at][0] < file.offset_bytes + file.size_bytes:
        start, length, ms = ranges[at]
        if start + length > file.offset_bytes and (first is None or ms < first):
            first = ms
        at += 1
    return first


def sort_lines(paths: Sequence[str]) -> list[bytes]:
    """Return a sort file for mksquashfs: the first path gets the highest priority. Names it cannot express are left out. Pure."""
    usable = [path.strip("/") for path in paths if path.strip("/") and not set(path) & set("\n\0")]
    lines = []
    for place, path in enumerate(dict.fromkeys(usable)):
        # With more files than priorities, neighbours share one; the last ones share 1.
        priority = max(1, _HIGHEST - place)
        name = "".join(f"\\{letter}" if letter in '\\" \t' else letter for letter in path)
        lines.append(f"{name} {priority}\n".encode("utf-8", "surrogateescape"))
    return lines
