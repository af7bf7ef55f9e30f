"""Where a run keeps its files, what the run is called, and which output of which rank goes where.

Decides only; folders are made when the job starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from robust_run.errors import UserError
from robust_run.launcher.model.job import OutputStreams, Std
from robust_run.launcher.model.world import World, absolute, obstacle, runs_instead, shown, usual_runs
from robust_run.launcher.records.run_directory import LONGEST_ID, is_run_id
from robust_run.launcher.start.options.options import Options

_LONGEST_RDZV_PART = 100
_FOR_ALL = re.compile(r"[0-3]")
_FOR_RANK = re.compile(r"(\d+):([0-3])", re.ASCII)
_ESCAPED_COMMA = "\0"


def resolve_log_dir(options: Options, world: World) -> tuple[str | None, tuple[str, ...]]:
    """Return the parent of run directories, absolute, or None to keep nothing; and notes for the user.

    Raises UserError if the folder that was asked for cannot be written.
    """
    if options.log_dir:
        if options.log_dir == os.devnull:
            return None, ()
        wanted = absolute(options.log_dir, world)
        why = obstacle(wanted, world.files)
        if why:
            raise UserError(f"--log-dir {options.log_dir!r} cannot be used: {why}; choose another folder")
        return wanted, ()
    wanted = usual_runs(world.cwd)
    why = obstacle(wanted, world.files)
    if not why:
        return wanted, ()
    instead = runs_instead(world.cwd, world.env, world.user)
    worse = obstacle(instead, world.files)
    if worse:
        raise UserError(f"nowhere to keep logs: {why}, and {worse}; give --log-dir FOLDER (/dev/null keeps nothing)")
    return instead, (f"logs go to {shown(instead)}, because {why}; --log-dir chooses another folder",)


def resolve_run_id(
    options: Options, rdzv_id: str | None, log_dir: str | None, world: World, shared: bool = False
) -> str:
    """Return the name of the run directory. Raises UserError for a --run-id that is no name or is taken.

    `shared`: other nodes of the job may have made the directory already, so that one that exists proves nothing.
    """
    if options.run_id is not None:
        _check_run_id(options.run_id, None if shared else log_dir, world)
        return options.run_id
    if rdzv_id is not None:
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", rdzv_id).lstrip(".-")[:_LONGEST_RDZV_PART]
        return f"{readable or 'run'}_{world.random_hex(8)}"
    now = world.local_time()
    date = f"{now.tm_year:04d}{now.tm_mon:02d}{now.tm_mday:02d}"
    return f"{date}-{now.tm_hour:02d}{now.tm_min:02d}{now.tm_sec:02d}-{world.random_hex(4)}"


#: What a leader of several roles puts into the run directory of a member, before its launcher is started.
_PREPARED = {"objects", "trees", "at", "start.json"}


def _is_free(path: str, world: World) -> bool:
    """Whether a run directory is empty, or holds nothing but links to code that members of a job share."""
    names = set(world.files.names(path))
    return not names or (names == {"code"} and set(world.files.names(os.path.join(path, "code"))) <= _PREPARED)


def _check_run_id(run_id: str, log_dir: str | None, world: World) -> None:
    if len(run_id) > LONGEST_ID:
        raise UserError(f"--run-id has {len(run_id)} characters; at most {LONGEST_ID} are allowed")
    if not is_run_id(run_id):
        raise UserError(f"--run-id {run_id!r} is no name for a folder; use letters, digits, '.', '_' and '-'")
    if log_dir is None:
        return
    path = os.path.join(log_dir, run_id)
    kind = world.files.kind(path)
    if kind not in ("missing", "folder") or not _is_free(path, world):
        raise UserError(
            f"--run-id {run_id!r}: {shown(path)} exists and is not an empty folder; choose another id or move it away"
        )


def resolve_streams(options: Options, nproc: int, env: Mapping[str, str]) -> tuple[OutputStreams, tuple[str, ...]]:
    """Return what `--redirects`, `--tee`, `--local-ranks-filter` and the filters mean for each of `nproc` ranks; and notes for
    the user. Raises UserError for values that make no sense.
    """
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
