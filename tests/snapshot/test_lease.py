"""One builder per key: the decisions in a table, then threads and processes that want the same key."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from snapshot.environments import TREE
from snapshot.made import KEY, manifest_of

from robust_run.clock import SystemClock
from robust_run.snapshot import catalog, holding, lease_files
from robust_run.snapshot.building import publish
from robust_run.snapshot.errors import SetupFailed
from robust_run.snapshot.rules import lease
from robust_run.snapshot.rules.lease import BuilderHeartbeat, LeaseWatch, StoreSight
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.opening import open_store
from robust_run.store.types import Store

NONE = StoreSight(is_published=False, term=0, beat=None)
BUILDING = StoreSight(is_published=False, term=1, beat=BuilderHeartbeat(builder="b", count=1, progress="pip"))
CASES: list[tuple[StoreSight, float, float, tuple[str, int]]] = [
    # seen, when the watch began, since when it is so, what is done at 100 s
    (NONE, 100, 100, ("claim", 1)),
    (StoreSight(is_published=True, term=3, beat=None), 100, 100, ("restore", 0)),
    (BUILDING, 80, 80, ("wait", 0)),
    (BUILDING, 60, 69, ("claim", 2)),
    (StoreSight(is_published=False, term=1, beat=None), 80, 80, ("wait", 0)),
    (StoreSight(is_published=False, term=1, beat=None), 60, 60, ("claim", 2)),
    (
        StoreSight(is_published=False, term=2, beat=BuilderHeartbeat(builder="b", count=9, state="failed")),
        100,
        100,
        ("claim", 3),
    ),
    (
        StoreSight(is_published=False, term=2, beat=BuilderHeartbeat(builder="b", count=9, state="failed")),
        80,
        100,
        ("fail", 0),
    ),
    (
        StoreSight(is_published=False, term=2, beat=BuilderHeartbeat(builder="b", count=9, state="left")),
        80,
        100,
        ("claim", 3),
    ),
    (
        StoreSight(is_published=False, term=2, beat=BuilderHeartbeat(builder="b", count=9, state="done")),
        80,
        100,
        ("claim", 3),
    ),
    (StoreSight(is_published=False, term=lease.MOST_TERMS, beat=None), 0, 0, ("fail", 0)),
]


@pytest.mark.parametrize(("seen", "began_s", "since_s", "expected"), CASES)
def test_what_to_do(seen: StoreSight, began_s: float, since_s: float, expected: tuple[str, int]) -> None:
    found = lease.decide(LeaseWatch(began_s=began_s, seen=seen, since_s=since_s), 100.0, lease_s=30.0)
    assert (found.act, found.term) == expected


def test_every_change_of_the_heartbeat_begins_the_lease_anew() -> None:
    watch = lease.watched(LeaseWatch(began_s=0.0), BUILDING, 0.0)
    watch = lease.watched(watch, BUILDING, 29.0)
    assert watch.since_s == 0.0
    beat = BuilderHeartbeat(builder="b", count=2)
    watch = lease.watched(watch, StoreSight(is_published=False, term=1, beat=beat), 29.0)
    assert lease.decide(watch, 58.0, 30.0).act == "wait"
    assert lease.decide(watch, 60.0, 30.0).act == "claim"


def store_of(folder: Path) -> Store:
    return open_store(str(folder / "store"))


def publisher(store: Store, folder: Path, builds: list[str]) -> Callable[[holding.Holder], SnapshotManifest]:
    """Return what stands for running the set-up."""

    def build(holder: holding.Holder) -> SnapshotManifest:
        builds.append(threading.current_thread().name)
        holder.say("installing")
        image = folder / f"image-{threading.get_ident()}"
        image.write_bytes(b"i" * 4096)
        return publish(store, manifest_of(), str(image))

    return build


def obtain(store: Store, build: Callable[[holding.Holder], SnapshotManifest], **changes: object) -> SnapshotManifest:
    settings: dict[str, object] = {
        "clock": SystemClock(),
        "sleep": lambda seconds: time.sleep(min(seconds, 0.02)),
        "limit_s": 60.0,
    }
    return holding.obtain(store, KEY.digest, build, **{**settings, **changes})  # type: ignore[arg-type]


def test_ten_nodes_that_want_one_key_at_once_build_it_once(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    builds: list[str] = []
    found: list[SnapshotManifest] = []
    build = publisher(store, tmp_path, builds)
    nodes = [threading.Thread(target=lambda: found.append(obtain(store, build))) for _ in range(10)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(60)
    assert len(builds) == 1
    assert len(found) == 10
    assert {manifest.image_sha256 for manifest in found} == {manifest_of().image_sha256}


class BuiltMeanwhile:
    """A store in which another node builds a key, and publishes it, just before the nth question that is asked of it."""

    def __init__(self, store: Store, question: int, happens: Callable[[], object]) -> None:
        self._store, self._left, self._happens = store, question, happens

    def __getattr__(self, name: str) -> object:
        if name in ("size_bytes", "read_all"):
            if not self._left:
                self._happens()
            self._left -= 1
        return getattr(self._store, name)


@pytest.mark.parametrize("question", range(5))
@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_key_that_is_published_between_two_questions_is_not_built_again(
    tmp_path: Path, question: int, is_claimed: bool
) -> None:
    store = store_of(tmp_path)
    builds: list[str] = []
    build = publisher(store, tmp_path, builds)
    if is_claimed:
        assert lease_files.claim(store, KEY.digest, 1, "x")
    holder = holding.Holder(store, KEY.digest, 1, "x", lease_s=3600.0)

    def other() -> None:
        assert is_claimed or lease_files.claim(store, KEY.digest, 1, "x")
        holder.start()
        build(holder)
        holder.end("done")

    meanwhile = BuiltMeanwhile(store, question, other)
    obtain(meanwhile, build)  # type: ignore[arg-type]
    assert len(builds) == 1


def test_when_the_commands_fail_those_who_wait_fail_with_the_same_words(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    is_waiting = threading.Event()
    errors: list[str] = []

    def build(holder: holding.Holder) -> SnapshotManifest:
        holder.say("pip: resolving")
        assert is_waiting.wait(30)
        raise SetupFailed("set-up command 'pip install x' ended with 1: no such package")

    def run() -> None:
        try:
            obtain(store, build, on_wait=lambda _: is_waiting.set())
        except SetupFailed as error:
            errors.append(str(error))

    nodes = [threading.Thread(target=run) for _ in range(2)]
    for node in nodes:
        node.start()
    for node in nodes:
        node.join(60)
    assert len(errors) == 2
    assert all("no such package" in error for error in errors)
    builds: list[str] = []
    obtain(store, publisher(store, tmp_path, builds))
    assert len(builds) == 1, "a later launch tries again"


@pytest.mark.parametrize("count", [10_000, 100_000])
def test_a_heartbeat_is_shown_without_control_characters_and_in_short(tmp_path: Path, count: int) -> None:
    """One that no builder can have written is as none."""
    store = store_of(tmp_path)
    assert lease_files.claim(store, KEY.digest, 1, "x")
    beat = BuilderHeartbeat(builder="\x1b[2Jme", count=1, progress="\x1b[2J" + "x" * count)
    store.write_all(catalog.lease_path(KEY.digest, 1, "beat"), msgspec.json.encode(beat))
    shown = BuilderHeartbeat(builder="[2Jme", count=1, progress="[2J" + "x" * 496)
    assert lease_files.look(store, KEY.digest).beat == (shown if count == 10_000 else None)


def test_what_commands_write_is_told_without_credentials(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    assert lease_files.claim(store, KEY.digest, 1, "x")
    holder = holding.Holder(store, KEY.digest, 1, "x", lease_s=3600.0)
    holder.hear(b"Looking in https://me:s3cret@host/simple\n")
    holder.start()
    holder.end()
    seen = lease_files.look(store, KEY.digest).beat
    assert seen is not None and seen.progress == "Looking in https://host/simple"


def test_a_refresh_builds_what_is_there_already(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    builds: list[str] = []
    build = publisher(store, tmp_path, builds)
    obtain(store, build)
    obtain(store, build)
    assert len(builds) == 1
    obtain(store, build, refresh=True)
    assert len(builds) == 2


_BUILDER = """
import sys, time; sys.path[:0] = sys.argv[1].split(':')
from robust_run.clock import SystemClock
from robust_run.snapshot import holding
from robust_run.store.opening import open_store
def build(holder):
    print("building", flush=True)
    time.sleep(600)
holding.obtain(open_store(sys.argv[2]), sys.argv[3], build, clock=SystemClock(), sleep=time.sleep, lease_s=float(sys.argv[4]))
"""


def start_builder(store: Store, lease_s: float) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", _BUILDER, str(TREE), store.url, KEY.digest, str(lease_s)]
    builder = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/")
    assert builder.stdout is not None
    assert builder.stdout.readline() == b"building\n"
    return builder


def end(builder: subprocess.Popen[bytes]) -> None:
    builder.kill()
    builder.wait(30)
    assert builder.stdout is not None
    builder.stdout.close()


def test_when_the_builder_is_killed_one_who_waits_takes_over(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    builder = start_builder(store, 1.0)
    builds: list[str] = []
    waited: list[str] = []

    def note(what: str) -> None:
        if not waited:
            builder.kill()
        waited.append(what)

    try:
        manifest = obtain(store, publisher(store, tmp_path, builds), lease_s=1.0, on_wait=note)
    finally:
        end(builder)
    assert waited
    assert len(builds) == 1
    assert manifest == manifest_of()
    assert lease_files.look(store, KEY.digest).term == 2


def test_a_builder_that_only_stopped_notices_that_another_took_over(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    builder = start_builder(store, 0.6)
    os.kill(builder.pid, signal.SIGSTOP)
    builds: list[str] = []
    try:
        obtain(store, publisher(store, tmp_path, builds), lease_s=0.6)
        assert len(builds) == 1
        assert not lease.is_ours(lease_files.look(store, KEY.digest), 1)
    finally:
        end(builder)


def test_a_manifest_that_cannot_be_read_is_no_snapshot_and_is_refused(tmp_path: Path) -> None:
    from robust_run.snapshot.errors import SnapshotRefused

    store = store_of(tmp_path)
    store.write_all(catalog.manifest_path(KEY.digest), b"{}")
    with pytest.raises(SnapshotRefused, match="no manifest"):
        obtain(store, publisher(store, tmp_path, []))
