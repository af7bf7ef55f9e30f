"""What `--redirects`, `--tee`, `--local-ranks-filter` and the filters of duplicated lines mean for each rank."""

from __future__ import annotations

import re
from collections.abc import Mapping

from robust_run.errors import UserError
from robust_run.launcher.model.job import OutputStreams, Std
from robust_run.launcher.start.options.options import Options

_FOR_ALL = re.compile(r"[0-3]")
_FOR_RANK = re.compile(r"(\d+):([0-3])", re.ASCII)
_ESCAPED_COMMA = "\0"


def resolve_streams(options: Options, nproc: int, env: Mapping[str, str]) -> tuple[OutputStreams, tuple[str, ...]]:
    """Return the streams of `nproc` ranks, and notes for the user. Raises UserError for values that make no sense."""
    notes: list[str] = []
    streams = OutputStreams(
        redirects=_by_rank("redirects", options.redirects, nproc, notes),
        tee=_by_rank("tee", options.tee, nproc, notes),
        shown=_shown(options.local_ranks_filter, nproc, notes),
        prefix_template=env.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE") or None,
        stdout_filters=split_filters(options.duplicate_stdout_filters),
        stderr_filters=split_filters(options.duplicate_stderr_filters),
    )
    return streams, tuple(notes)


def split_filters(text: str) -> tuple[str, ...]:
    """Split at commas; two of them are one that belongs to a filter. Empty filters would match all lines: dropped."""
    parts = text.replace(",,", _ESCAPED_COMMA).split(",")
    return tuple(part.replace(_ESCAPED_COMMA, ",") for part in parts if part)


def _by_rank(name: str, text: str, nproc: int, notes: list[str]) -> tuple[Std, ...]:
    if _FOR_ALL.fullmatch(text):
        return (_std(text),) * nproc
    streams = [Std()] * nproc
    for part in text.split(","):
        match = _FOR_RANK.fullmatch(part)
        if match is None:
            raise UserError(
                f"--{name}: {text!r} is neither 0, 1 (stdout), 2 (stderr), 3 (both) nor RANK:VALUE,... like 0:3,1:1"
            )
        rank = int(match.group(1))
        if rank < nproc:
            streams[rank] = _std(match.group(2))
        else:
            notes.append(f"--{name}: there is no local rank {rank}; the last one is {nproc - 1}")
    return tuple(streams)


def _std(digit: str) -> Std:
    return Std(out=digit in "13", err=digit in "23")


def _shown(text: str, nproc: int, notes: list[str]) -> tuple[bool, ...]:
    if not text:
        return (True,) * nproc
    ranks: set[int] = set()
    for part in text.split(","):
        if not re.fullmatch(r"\s*\d+\s*", part):
            raise UserError(f"--local-ranks-filter: {text!r} is not a list of local ranks like 0,1,2")
        ranks.add(int(part))
    missing = sorted(rank for rank in ranks if rank >= nproc)
    if missing:
        listed = ", ".join(map(str, missing))
        notes.append(f"--local-ranks-filter: there is no local rank {listed}; the last one is {nproc - 1}")
    return tuple(rank in ranks for rank in range(nproc))
