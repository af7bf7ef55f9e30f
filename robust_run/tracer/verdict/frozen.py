"""Ranks that a cgroup keeps frozen: which, and what thaws them. Pure.

A cgroup is frozen on purpose, and thawed by what froze it: a container that is paused, a job that a scheduler suspends.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from robust_run.tracer.types import RankSight

#: Of many cgroups, so many are named.
_NAMED = 3
_WHO = "docker pause, podman pause, or a scheduler that suspends the job may have frozen it: undo it there"


def freezer_of(sight: RankSight) -> str:
    """Return the file by which a living rank's process is frozen; "" if it is not."""
    return next((one.frozen_by for one in sight.processes if one.is_rank and sight.exit_code is None), "")


def frozen_word(files: Sequence[str]) -> str:
    """Say by which cgroups ranks are frozen."""
    known = list(dict.fromkeys(files))
    more = f" and {len(known) - 1} more" if len(known) > 1 else ""
    return f"frozen by the cgroup {known[0].rpartition('/')[0]}{more}"


def thaw_command(file: str) -> str:
    """Return what thaws a cgroup, by the file that froze it: of version 1 or of version 2."""
    return f"echo {'THAWED' if file.endswith('.state') else '0'} > {quote(file)}"


def thawing(sights: Iterable[RankSight]) -> tuple[str, ...]:
    """Return lines that say how frozen ranks are thawed, and who may have frozen them; none where none is frozen."""
    where = dict.fromkeys((sight.node, file) for sight in sights if (file := freezer_of(sight)))
    lines = tuple(f"frozen on {node}; to thaw it, type there: {thaw_command(file)}" for node, file in where)
    return (*lines[:_NAMED], _WHO) if lines else ()
