"""What a node does with a set-up when a job starts: find the snapshot or build it, then restore it.

The node that is to build calls with `may_build`; others wait for it, and take over only where they may build, too. A restart of
workers on a node that runs already needs nothing of this: what was restored stays. A node that joins later is given the manifest
of the job, so that all nodes have the same environment even if another job refreshes it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.snapshot import building, catalog, holding, lease_files
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture import capturing
from robust_run.snapshot.errors import CaptureRefused, SnapshotDamaged, SnapshotError, ToolMissing
from robust_run.snapshot.rules import expiry
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.errors import StoreError
from robust_run.store.types import Store

#: How long the first builder is waited for before another node builds.
HEAD_START_S = 30.0
_LOOK_S = 0.5


class RestoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    may_build: bool = True
    refresh: bool = False
    """`--refresh-setup`."""
    damaged: SnapshotManifest | None = None
    """A snapshot that could not be restored because it is damaged: another is to take its place."""
    head_start_s: float = 0.0
    """How long to leave the building to others; `HEAD_START_S` for all nodes but the first."""
    warn_s: float = expiry.WARN_S
    ttl_s: float = expiry.TTL_S
    limit_s: float = 24 * 3600.0
    keep_in: str = ""
    """The cache of this node; see `building.build`."""


class FoundSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot to restore."""

    manifest: SnapshotManifest
    was_built: bool
    """By this process, now."""


def find(  # noqa: PLR0913 - the world is an argument
    plan: BuildPlan,
    store: Store,
    asked: RestoreRequest,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    token: str | None = None,
    on_output: Callable[[bytes], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
    on_wait: Callable[[str], None] | None = None,
    capture: building.Capture = capturing.capture,
) -> FoundSnapshot:
    """Return the snapshot of a set-up; builds it, or waits for who does. `say` gets progress and warnings, a sentence each.

    `on_wait` gets what another builder does, as often as that changes; without it, `say` does. `capture`: see `building.build`.

    A damaged snapshot is built anew.

    Raises `SetupFailed`; `SnapshotRefused` for what cannot be used; `StoreError`; where this node must not build and no other
    does, `SnapshotError`. For `CaptureRefused` and `ToolMissing`, see `must_run_commands`.
    """
    there, is_damaged = _there(store, plan, token, asked, say)
    if there is not None and _will_do(there, asked, clock, say):
        return FoundSnapshot(manifest=there, was_built=False)
    _leave_to_others(store, plan.key.digest, asked, clock, sleep)
    if not asked.may_build:
        return FoundSnapshot(manifest=_wait(store, plan, token, asked, clock, sleep), was_built=False)
    renews = asked.refresh or is_damaged or there is not None
    built: list[SnapshotManifest] = []

    def build(holder: holding.Holder) -> SnapshotManifest:
        if is_damaged and (mended := _mended(store, plan, token, asked.damaged)) is not None:
            return mended
        replacing = msgspec.structs.replace(plan, replace=plan.replace or renews)
        built.append(
            building.build(
                replacing,
                store,
                holder,
                clock=clock,
                token=token,
                on_output=on_output,
                capture=capture,
                keep_in=asked.keep_in,
            )
        )
        return built[0]

    try:
        manifest = holding.obtain(
            store, plan.key.digest, build, clock=clock, sleep=sleep, token=token, limit_s=asked.limit_s,
            on_wait=on_wait or (lambda what: say(f"waiting for another build of the set-up: {what}")),
            refresh=renews,
        )  # fmt: skip
    except SnapshotError as error:
        if there is None:
            raise
        say(f"the set-up could not be resolved anew, what was resolved before is used: {error}")
        return FoundSnapshot(manifest=there, was_built=False)
    return FoundSnapshot(manifest=manifest, was_built=bool(built))


def _there(
    store: Store, plan: BuildPlan, token: str | None, asked: RestoreRequest, say: Callable[[str], None]
) -> tuple[SnapshotManifest | None, bool]:
    """Return the snapshot that may be used if it is not too old, and whether one is there that is damaged.

    Raises `SnapshotDamaged` where no other may be built.
    """
    if asked.refresh or asked.damaged is not None:
        return None, asked.damaged is not None
    try:
        return catalog.load(store, plan.key.digest, token), False
    except SnapshotDamaged as error:
        if not asked.may_build:
            raise
        say(f"the snapshot of the set-up is damaged, so it is built anew: {error}")
        return None, True


def _will_do(there: SnapshotManifest, asked: RestoreRequest, clock: Clock, say: Callable[[str], None]) -> bool:
    """Whether a snapshot is used as it is: it is young enough, or this node must not build another."""
    age = expiry.age(there, clock.unix_s(), warn_s=asked.warn_s, ttl_s=asked.ttl_s)
    if age.state != "fresh":
        say(f"set-up {there.key[:16]}: {age.words}")
    return age.state != "expired" or not asked.may_build


def must_run_commands(error: PlatformError) -> bool:
    """Whether nothing is wrong with the set-up, but no snapshot can be made or stored: `rerunning.run_commands` is left. Pure."""
    return isinstance(error, (CaptureRefused, ToolMissing, StoreError))


def _mended(
    store: Store, plan: BuildPlan, token: str | None, damaged: SnapshotManifest | None
) -> SnapshotManifest | None:
    """Return what another builder has put in the place of a damaged snapshot before it was our turn. None: nothing is there."""
    with suppress(SnapshotDamaged):
        found = catalog.load(store, plan.key.digest, token)
        return found if found != damaged else None
    return None


def _leave_to_others(
    store: Store, key: str, asked: RestoreRequest, clock: Clock, sleep: Callable[[float], None]
) -> None:
    """Wait until another node builds, or the head start is over."""
    began_s = clock.monotonic_s()
    while clock.monotonic_s() - began_s < asked.head_start_s:
        seen = lease_files.look(store, key)
        if seen.is_published or (seen.beat is not None and seen.beat.state == "building"):
            return
        sleep(_LOOK_S)


def _wait(
    store: Store,
    plan: BuildPlan,
    token: str | None,
    asked: RestoreRequest,
    clock: Clock,
    sleep: Callable[[float], None],
) -> SnapshotManifest:
    began_s = clock.monotonic_s()
    while True:
        found = catalog.load(store, plan.key.digest, token)
        if found is not None:
            return found
        if clock.monotonic_s() - began_s >= asked.limit_s:
            raise SnapshotError(
                f"{store.url}: no snapshot of key {plan.key.digest[:16]} after {asked.limit_s:.0f} s, and this node is not"
                " to build one: see the node that is"
            )
        sleep(_LOOK_S)
