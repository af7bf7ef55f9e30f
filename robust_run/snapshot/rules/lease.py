"""Leader election by a lease: one builder per key, who waits, who takes over. Pure; `holding` does what is decided here.

A builder claims a *term* by creating its file, which only one can, and then writes its heartbeat again and again. A term whose
heartbeat has not changed for the lease's time, by the watcher's own clock, is over: its builder is dead or cut off, and anybody
may claim the next. No clock of another machine is compared.

Two builders at once (one was only slow) do no harm: images are named by their content, and the first manifest stays.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MOST_TERMS = 1000
#: Long enough for a machine under load and a slow store; what it costs is the wait after a builder was killed.
LEASE_S = 30.0
BEATS_PER_LEASE = 6

State = Literal["building", "done", "failed", "left"]


class BuilderHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A builder's heartbeat."""

    builder: str
    """Unique name of the process: host, pid, random digits."""
    count: int
    state: State = "building"
    """done: it has published; failed: the commands failed; left: it gives up for a reason of its own, such as a signal."""
    progress: str = ""
    """The last line of the commands, or why they failed."""


class StoreSight(msgspec.Struct, frozen=True, kw_only=True):
    """What the store says at one moment."""

    is_published: bool
    term: int
    """The newest that is claimed; 0: none."""
    beat: BuilderHeartbeat | None
    """The heartbeat of that term; None: not written yet, or not readable."""


class LeaseWatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a watcher remembers."""

    began_s: float
    """When it began to watch, by its own monotonic clock."""
    seen: StoreSight | None = None
    since_s: float = 0.0
    """When it first saw that."""


class LeaseDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now."""

    act: Literal["restore", "claim", "wait", "fail"]
    term: int = 0
    """The one to claim."""
    reason: str = ""


def watched(watch: LeaseWatch, seen: StoreSight, now_s: float) -> LeaseWatch:
    """Return what is remembered after another look."""
    if watch.seen == seen:
        return watch
    return LeaseWatch(began_s=watch.began_s, seen=seen, since_s=now_s)


def decide(watch: LeaseWatch, now_s: float, lease_s: float = LEASE_S) -> LeaseDecision:
    """Return what to do after the latest look, which `watched` has put into the watch."""
    seen = watch.seen
    assert seen is not None
    if seen.is_published:
        return LeaseDecision(act="restore")
    if seen.term == 0:
        return LeaseDecision(act="claim", term=1, reason="no node builds it yet")
    if seen.term >= MOST_TERMS:
        return LeaseDecision(act="fail", reason=f"{seen.term} builders have tried; remove the key: robust env prune")
    beat = seen.beat
    if beat is not None and beat.state == "done":
        return LeaseDecision(act="claim", term=seen.term + 1, reason="what was built before is to be replaced")
    if beat is not None and beat.state == "left":
        return LeaseDecision(act="claim", term=seen.term + 1, reason=f"builder {beat.builder} gave up: {beat.progress}")
    if beat is not None and beat.state == "failed":
        if watch.since_s > watch.began_s:
            return LeaseDecision(act="fail", reason=f"builder {beat.builder}: {beat.progress}")
        return LeaseDecision(act="claim", term=seen.term + 1, reason="the last build failed before we came")
    silent_s = now_s - watch.since_s
    if silent_s > lease_s:
        name = beat.builder if beat is not None else "unknown"
        return LeaseDecision(
            act="claim", term=seen.term + 1, reason=f"builder {name} has been silent for {silent_s:.0f} s"
        )
    if beat is None:
        return LeaseDecision(act="wait", reason="another node builds it")
    return LeaseDecision(act="wait", reason=beat.progress or f"{beat.builder} builds it")


def is_ours(seen: StoreSight, term: int) -> bool:
    """Whether a term is still the newest: what its builder asks before it publishes."""
    return seen.term == term


def is_gone(seen: StoreSight, term: int) -> bool:
    """Whether a term's claim is not there any more, and nobody has made a newer one."""
    return seen.term < term
