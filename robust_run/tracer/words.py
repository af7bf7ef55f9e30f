"""How verdicts speak of ranks, nodes and places: short, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from robust_run.tracer.types import BACKWARD

#: A sentence longer than this is cut.
SENTENCE_CHARACTERS = 250
#: So many ranges of ranks are written out.
RANGES = 4


def span(ranks: Iterable[int]) -> str:
    """Write ranks as ranges: `0-3,6`; of many ranges the first few, then `...`."""
    ordered = sorted(set(ranks))
    ranges: list[str] = []
    start = previous = -1
    for rank in [*ordered, -1]:
        if start >= 0 and rank == previous + 1 and rank > start:
            previous = rank
            continue
        if start >= 0:
            ranges.append(str(start) if start == previous else f"{start}-{previous}")
        if len(ranges) > RANGES:
            return ",".join([*ranges[:RANGES], "..."])
        start = previous = rank
    return ",".join(ranges)


def ranks_words(ranks: Sequence[int]) -> str:
    """Name ranks: `rank 5`, `ranks 2 and 5`, `4 ranks (0-3)`."""
    ordered = sorted(set(ranks))
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) == 2:
        return f"ranks {ordered[0]} and {ordered[1]}"
    return f"{len(ordered)} ranks ({span(ordered)})"


def count_words(count: int, what: str = "rank") -> str:
    """Count things: `1 rank`, `7 ranks`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def short_site(site: str) -> str:
    """Return where a call was made without the folders: `data.py:88 get`."""
    return site.rpartition("/")[2]


def op_name(op: str) -> str:
    """Return what people call an operation."""
    return "the backward pass" if op == BACKWARD else op


def bytes_words(count: int) -> str:
    """Write an amount of data: `312 B`, `48 kB`, `1.5 MB`."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1000:.0f} kB" if count < 999_500 else f"{count / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """Write a time as people do: `1.5 s`, `48 s`, `4 min 50 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    if whole < 5400:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def one_line(text: str, limit: int = SENTENCE_CHARACTERS) -> str:
    """Return the text as one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
