"""What of a checkpoint is fetched ahead, and for whom, when an attempt begins. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.resume_events import ResumePoint


class Readers(NamedTuple):
    """Who reads what an attempt starts from: ranks of this node and of others, as first rank and number of ranks."""

    own: tuple[int, int] = (0, 0)
    world_size: int = 0
    nodes: tuple[str, ...] = ()
    """HOST:PORT of those that share."""
    ranks: tuple[tuple[int, int], ...] = ()
    """Of these."""


NOBODY = Readers()


class AssumedShare(NamedTuple):
    """A node among several, as the job's options have it before they have met."""

    own: int
    nodes: int
    nproc: int
    has_place: bool = False
    """Its ranks run in an image or set-up."""


def readers_of(order: StartAttempt) -> Readers:
    """Return who reads in an attempt, as the order to start it to one node says."""
    mine = order.placements[0]
    return Readers((mine.first_rank, mine.nproc), order.world_size, order.fetchers, order.fetcher_ranks)


Step = Literal["begin", "tell", "go_on", "end", "nothing"]
#: What is being fetched, as long as the process has not found the newest yet.
LOOKING = "looking"


def next_step(running: str, point: ResumePoint | None, url: str, *, is_wanted: bool = True) -> Step:
    """Return what to do when an attempt begins. Pure.

    `running`: the uuid of what is being fetched, or was and is still held; LOOKING: it is told; empty: nothing. `url`: where the
    attempt starts. A step in memory, a checkpoint of this machine's own folder and the beginning have nothing to be fetched.
    """
    is_far = point is not None and point.source == "storage" and bool(point.uuid) and "://" in url
    if point is None or not is_far or not is_wanted:
        return "end" if running else "nothing"
    if running == LOOKING:
        return "tell"
    return "go_on" if running == point.uuid else "begin"
