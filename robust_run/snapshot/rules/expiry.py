"""How old a snapshot may be, and which ones of a store can go. Pure.

A snapshot of requirements that all name one version never expires. Others resolve to something newer in time: after `warn_s` it
is said how old they are, after `ttl_s` they are built anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from robust_run.snapshot.rules.types import SnapshotManifest

WARN_S = 7 * 86400.0
TTL_S = 30 * 86400.0
#: How long the lease of a build that ended without a snapshot stays. Nodes that wait for it look twice a second and must read why
#: it failed; one that is stopped or starved for longer runs the commands itself, and hears it from them.
GIVEN_UP_S = 3600.0


class Age(msgspec.Struct, frozen=True, kw_only=True):
    """How a snapshot stands with time."""

    state: Literal["fresh", "old", "expired"]
    words: str = ""
    """For people; "" if it is fresh."""


class StoredFolder(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of a store."""

    key: str
    built_unix_s: float | None
    """None: there is no manifest; a build is under way, or was killed."""
    touched_unix_s: float
    """When anything in it was last written or, where that is known, used; by the store's clock. Infinite: it does not say."""
    size_bytes: int
    given_up: bool = False
    """There never was a manifest, and the newest builder said that it failed or gave up."""


class FolderRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """One folder to remove."""

    key: str
    size_bytes: int
    reason: str


def age(manifest: SnapshotManifest, now_unix_s: float, *, warn_s: float = WARN_S, ttl_s: float = TTL_S) -> Age:
    """Return how old a snapshot is. One from the future (a clock was wrong) is fresh."""
    if manifest.pinned:
        return Age(state="fresh")
    seconds = now_unix_s - manifest.built_unix_s
    words = f"resolved {spoken(seconds)} ago; --refresh-setup resolves again"
    if seconds > ttl_s:
        return Age(state="expired", words=f"{words} (at most {spoken(ttl_s)})")
    if seconds > warn_s:
        return Age(state="old", words=words)
    return Age(state="fresh")


def prune_plan(
    stored: Iterable[StoredFolder],
    now_unix_s: float,
    *,
    unused_s: float,
    keep_latest: int = 0,
    keep_keys: Iterable[str] = (),
    abandoned_s: float = 86400.0,
) -> list[FolderRemoval]:
    """Return what to remove, oldest first: what was not touched for so long, and what builders left that failed or were killed.

    A builder that says nothing may only be slow, stopped, or cut off from the store: it has `abandoned_s`, and a heartbeat counts
    as a touch. One that said how it ended has `GIVEN_UP_S`, for those who still have to read it.

    `keep_latest`: so many of the latest built stay at any age; `keep_keys` always stay.
    """
    ordered = sorted(stored, key=lambda item: (item.built_unix_s or 0.0, item.key))
    whole = [item.key for item in ordered if item.built_unix_s is not None]
    kept = {*keep_keys, *(whole[-keep_latest:] if keep_latest > 0 else ())}
    plan = []
    for item in ordered:
        idle_s = now_unix_s - item.touched_unix_s
        if item.key in kept:
            continue
        if item.built_unix_s is None:
            if item.given_up and idle_s > GIVEN_UP_S:
                plan.append(_removal(item, f"its set-up failed {spoken(idle_s)} ago"))
            elif idle_s > abandoned_s:
                plan.append(_removal(item, f"its build was given up {spoken(idle_s)} ago"))
        elif idle_s > unused_s:
            plan.append(_removal(item, f"not used for {spoken(idle_s)}"))
    return plan


def spoken(seconds: float) -> str:
    """Return a duration in words: one unit, rounded down."""
    for name, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // length)
        if count >= 1:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"


def _removal(item: StoredFolder, reason: str) -> FolderRemoval:
    return FolderRemoval(key=item.key, size_bytes=item.size_bytes, reason=reason)
