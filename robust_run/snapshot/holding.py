"""Obtaining the snapshot of a key from a store: restore it, build it, or wait for who builds it and take over if that one dies.

A thin shell around `lease`: the store, the clock and the sleep are arguments.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.snapshot import catalog, leftovers
from robust_run.snapshot.errors import SetupFailed, SnapshotError
from robust_run.snapshot.lease_files import PROGRESS_CHARACTERS, claim, look
from robust_run.snapshot.rules import lease
from robust_run.snapshot.rules.key import blanked
from robust_run.snapshot.rules.lease import BuilderHeartbeat, LeaseWatch, StoreSight
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.errors import StoreError, is_transient
from robust_run.store.types import Store

_LOOK_S = 0.5

Build = Callable[["Holder"], SnapshotManifest]
"""Runs the set-up and publishes it; tells the holder of its progress."""


class Holder:
    """A claimed term, kept alive by a thread that writes heartbeats until it is told to end."""

    def __init__(self, store: Store, key: str, term: int, name: str, lease_s: float) -> None:
        self._store, self._key, self.term, self._name, self._lease_s = store, key, term, name, lease_s
        self._count = 0
        self._progress: str | bytes = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat_on, name="setup-lease", daemon=True)

    def start(self) -> None:
        """Write the first heartbeat, and have the others written. Raises `StoreError`."""
        self._beat("building")
        self._thread.start()

    def say(self, progress: str) -> None:
        """Say what waiting nodes show."""
        self._progress = progress[-PROGRESS_CHARACTERS:]

    def hear(self, line: bytes) -> None:
        """Have the commands' last line be what waiting nodes show. There may be millions; a few are looked at."""
        self._progress = line

    def is_ours(self) -> bool:
        """Whether no other builder has taken over. Raises `StoreError`.

        A claim that was removed with its folder (by hand, or while another node pruned) is made again: nobody has taken over.
        """
        seen = look(self._store, self._key, self.term)
        if lease.is_gone(seen, self.term) and claim(self._store, self._key, self.term, self._name):
            return True
        return lease.is_ours(seen, self.term)

    def end(self, state: lease.State | None = None, why: str = "") -> None:
        """Write no more heartbeats, and one last that says why if it failed. Never raises."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if state is not None:
            self._progress = why[:PROGRESS_CHARACTERS]
            with suppress(StoreError):
                self._beat(state)

    def sweep(self, clock: Clock) -> None:
        """Remove what failed builds of other keys left. Call it after `end`. Never raises."""
        leftovers.sweep(self._store, self._key, clock)

    def _beat_on(self) -> None:
        while not self._over.wait(self._lease_s / lease.BEATS_PER_LEASE):
            with suppress(StoreError):  # if that goes on, another takes over, and we notice before we publish
                self._beat("building")

    def _beat(self, state: lease.State) -> None:
        self._count += 1
        said = self._progress
        if isinstance(said, bytes):
            said = blanked(said.decode("utf-8", "replace").strip())[-PROGRESS_CHARACTERS:]
        beat = BuilderHeartbeat(builder=self._name, count=self._count, state=state, progress=said)
        path = catalog.lease_path(self._key, self.term, "beat")
        self._store.write_all(path, msgspec.json.encode(beat), durable=False)


def obtain(  # noqa: PLR0913 - the world is an argument
    store: Store,
    key: str,
    build: Build,
    *,
    clock: Clock,
    sleep: Callable[[float], None],
    token: str | None = None,
    lease_s: float = lease.LEASE_S,
    on_wait: Callable[[str], None] = lambda _: None,
    refresh: bool = False,
    limit_s: float = 24 * 3600.0,
) -> SnapshotManifest:
    """Return the manifest of a key, building it if no other builder has or does. `on_wait` hears what the builder does.

    `refresh`: build it although it is there; one that another builder makes meanwhile will do.

    Raises `SetupFailed` if the builder's commands fail, here or elsewhere; `SnapshotRefused` for what is in the store and cannot
    be used; `StoreError`; `SnapshotError` after the limit.
    """
    name = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
    began_s = clock.monotonic_s()
    watch = LeaseWatch(began_s=began_s)
    said = ""
    while clock.monotonic_s() - began_s < limit_s:
        seen = _look_again(store, key, watch, sleep)
        now_s = clock.monotonic_s()
        if watch.seen is None:
            watch = LeaseWatch(began_s=now_s)
        if refresh and watch.seen is not None and seen.beat is not None and seen.beat.state == "done":
            refresh = False  # it was built while we looked on
        if refresh:
            seen = msgspec.structs.replace(seen, is_published=False)
        watch = lease.watched(watch, seen, now_s)
        decision = lease.decide(watch, now_s, lease_s)
        if decision.act == "restore":
            found = catalog.load(store, key, token)
            if found is not None:
                return found
        elif decision.act == "fail":
            raise SetupFailed(decision.reason)
        elif decision.act == "claim" and claim(store, key, decision.term, name):
            return _build(Holder(store, key, decision.term, name, lease_s), build, clock)
        elif decision.reason != said:
            said = decision.reason
            on_wait(said)
        sleep(min(_LOOK_S, lease_s / lease.BEATS_PER_LEASE))
    raise SnapshotError(f"{store.url}: no snapshot of key {key[:16]} after {limit_s:.0f} s; see who builds it: {said}")


def _build(holder: Holder, build: Build, clock: Clock) -> SnapshotManifest:
    try:
        holder.start()
        found = build(holder)
    except SnapshotError as error:
        holder.end("failed", str(error))
        holder.sweep(clock)
        raise
    except BaseException as error:
        holder.end("left", str(error) or type(error).__name__)
        raise
    holder.end("done")
    holder.sweep(clock)
    return found


def _look_again(store: Store, key: str, watch: LeaseWatch, sleep: Callable[[float], None]) -> StoreSight:
    """Look, and where the store does not answer for a moment, look again."""
    for patience in (0.2, 1.0, 3.0):
        try:
            return look(store, key, max(1, watch.seen.term if watch.seen else 1))
        except StoreError as error:
            if not is_transient(error):
                raise
            sleep(patience)
    return look(store, key)
