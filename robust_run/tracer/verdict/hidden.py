"""Says once of a job that the kernel hides what its ranks wait for: then only what rings and stacks show is known. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from robust_run.tracer.types import RankSight
from robust_run.tracer.words import one_line, ranks_words


def hidden_words(sights: Iterable[RankSight]) -> str:
    """Return a line about the ranks whose waits the kernel hides, and why it does; "" if it hides none."""
    hidden = [sight for sight in sights if sight.hidden]
    if not hidden:
        return ""
    ranks = ranks_words(tuple(sight.rank for sight in hidden))
    verb = "waits" if len(hidden) == 1 else "wait"
    return one_line(
        f"the kernel does not let robust-run see what {ranks} {verb} for ({hidden[0].hidden});"
        " verdicts name the line at most, and nothing is proven from it"
    )
