"""What failed builds leave in a store, who removes it, and what is never taken from a build that goes on."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from snapshot.made import KEY, manifest_of

from robust_run.clock import SystemClock
from robust_run.snapshot import catalog, leftovers
from robust_run.snapshot.building import publish
from robust_run.snapshot.errors import SetupFailed
from robust_run.snapshot.holding import Holder, obtain
from robust_run.snapshot.lease_files import claim, look
from robust_run.snapshot.rules import expiry
from robust_run.snapshot.rules.lease import State
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.opening import open_store
from robust_run.store.types import Store

OTHER = "f" * 64
HOUR_S = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"))


def leaves(store: Store, key: str, state: State | None, age_s: float, folder: Path) -> Holder:
    """Play a builder that came so far, so long ago. None: it has only claimed."""
    assert claim(store, key, 1, "b")
    holder = Holder(store, key, 1, "b", lease_s=HOUR_S)
    if state == "building":
        holder.start()
        holder.end()
    elif state is not None:
        holder.end(state, "no such package")
    made = folder / "store" / key
    for path in (*made.rglob("*"), made):
        os.utime(path, (time.time() - age_s,) * 2)
    return holder


def fails(holder: Holder) -> SnapshotManifest:
    raise SetupFailed("no such package")


def build_another(store: Store) -> None:
    with pytest.raises(SetupFailed):
        obtain(store, KEY.digest, fails, clock=SystemClock(), sleep=time.sleep)


@pytest.mark.parametrize(
    ("state", "age_s", "stays"),
    [
        (None, 10 * HOUR_S, True),
        ("building", 10 * HOUR_S, True),
        ("done", 10 * HOUR_S, True),
        ("failed", 0.5 * HOUR_S, True),
        ("failed", 1.5 * HOUR_S, False),
        ("left", 1.5 * HOUR_S, False),
    ],
)
def test_a_build_removes_what_another_one_left_long_ago_and_said_so(
    store: Store, tmp_path: Path, state: State | None, age_s: float, stays: bool
) -> None:
    leaves(store, OTHER, state, age_s, tmp_path)
    build_another(store)
    assert sorted(catalog.keys(store)) == sorted([KEY.digest, *[OTHER] * stays]), "its own stays, for those who wait"
    assert look(store, KEY.digest).beat is not None


def test_a_key_that_failed_and_was_built_then_stays(store: Store, tmp_path: Path) -> None:
    leaves(store, KEY.digest, "failed", 10 * HOUR_S, tmp_path)
    (tmp_path / "image").write_bytes(b"i" * 4096)
    publish(store, manifest_of(), str(tmp_path / "image"))
    assert leftovers.sweep(store, OTHER, SystemClock()) == []
    leaves(store, OTHER, "failed", 0.0, tmp_path)
    assert leftovers.sweep(store, OTHER, SystemClock()) == []
    assert catalog.load(store, KEY.digest) is not None


def test_prune_removes_it_too(store: Store, tmp_path: Path) -> None:
    leaves(store, OTHER, "failed", 2.1 * HOUR_S, tmp_path)
    (removal,) = expiry.prune_plan(leftovers.stored(store), time.time(), unused_s=30 * 86400.0)
    assert (removal.key, removal.reason) == (OTHER, "its set-up failed 2 hours ago")


def test_a_build_of_days_is_alive_by_its_heartbeat_alone(store: Store, tmp_path: Path) -> None:
    """Object stores know of no times of folders, and this one's folder was made long ago."""
    holder = leaves(store, OTHER, "building", 3 * 86400.0, tmp_path)
    assert expiry.prune_plan(leftovers.stored(store), time.time(), unused_s=30 * 86400.0)
    holder._beat("building")
    os.utime(tmp_path / "store" / OTHER, (0, 0))
    os.utime(tmp_path / "store" / OTHER / "lease", (0, 0))
    assert expiry.prune_plan(leftovers.stored(store), time.time(), unused_s=30 * 86400.0) == []


@pytest.mark.parametrize("is_taken_over", [False, True])
def test_a_claim_that_was_removed_is_made_again_unless_another_builds(
    store: Store, tmp_path: Path, is_taken_over: bool
) -> None:
    holder = leaves(store, OTHER, "building", 0.0, tmp_path)
    assert holder.is_ours()
    catalog.remove(store, OTHER)
    assert holder.is_ours()
    if is_taken_over:
        assert claim(store, OTHER, 2, "c")
    assert holder.is_ours() is not is_taken_over
