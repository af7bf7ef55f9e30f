"""Does the set-up of a job on this node, before anything else of the job is there: found, built or waited for, then restored.

The first node runs the commands unless a snapshot is there; the others are told by it which snapshot the job has, or find it in
the store. A node that comes later and a job that is resumed only restore. A signal ends it, and gives the lease of a build back.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.agent.interruptible import unless_interrupted
from robust_run.launcher.agent.places.block_peers import peers_of
from robust_run.launcher.agent.places.made_place import Hears
from robust_run.launcher.agent.places.place import AnyPlace, OpenedPlace
from robust_run.launcher.agent.places.setup_place import SetupBrought, SetupPlace
from robust_run.launcher.agent.places.setup_progress import SetupProgress
from robust_run.launcher.agent.places.snapshot_news import News
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import SetupUse
from robust_run.snapshot import building, catalog, defaults, planning, rerunning, restoring, starting
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture import capturing
from robust_run.snapshot.errors import SetupFailed, SnapshotDamaged, SnapshotRefused
from robust_run.snapshot.restored import RestoredEnvironment
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules.restore_ladder import LADDER
from robust_run.snapshot.rules.types import Key, SnapshotManifest
from robust_run.store import turn_table
from robust_run.store.opening import open_store
from robust_run.store.types import Store

#: How long a build that is interrupted may take to end its commands and give its lease back.
STOP_S = 15.0
#: Ingredients of a key that may differ on a node that comes later: what was typed, and what it names, was changed meanwhile.
_OF_THE_COMMANDS = ("command ", "file ", "folder ", "editable ", "variable ")


def open_setup(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    say: Callable[[str], None],
    lifeline: int,
    news: News,
    token: str = "",
) -> OpenedPlace:
    """Have the set-up done. Raises PlatformError, UserError, and `Interrupted` by a signal.

    Ending signals must be held (see `guard.hold_signals`); `lifeline`: see `guard.run_guarded`. `token`: the secret of a job of
    several nodes, which then give each other what the store has.
    """
    assert spec.setup is not None
    opening = SetupOpening(spec, spec.setup, env, clock, say, news, token)
    return OpenedPlace(unless_interrupted(opening.open, spec, lifeline, "the set-up", opening.give_up), None)


class _Relay:
    """Buffer of sentences: keeps what is heard until there is a listener."""

    def __init__(self) -> None:
        self._kept: list[str] = []
        self._to: Callable[[str], None] = self._kept.append
        self._lock = threading.Lock()

    def __call__(self, sentence: str) -> None:
        with self._lock:
            self._to(sentence)

    def to(self, listener: Callable[[str], None]) -> None:
        """Pass on what was heard, and what will be."""
        with self._lock:
            self._to = listener
            for sentence in self._kept:
                listener(sentence)


class SetupOpening:
    """One start."""

    def __init__(
        self,
        spec: JobSpec,
        use: SetupUse,
        env: Mapping[str, str],
        clock: Clock,
        say: Callable[[str], None],
        news: News,
        token: str,
    ) -> None:
        """`token`: see `open_setup`."""
        self._spec, self._use, self._env, self._clock, self._say, self._news = spec, use, env, clock, say, news
        self._token = token if spec.many is not None else ""
        self._progress = SetupProgress(clock, say)
        self._capture: building.Capture = capturing.capture

    def give_up(self, thread: threading.Thread) -> None:
        """End what runs, in the thread where it does."""
        self._progress.give_up()
        thread.join(STOP_S)

    def _plan(self) -> BuildPlan:
        """Return what is to be done. Raises UserError."""
        python = (shutil.which(self._spec.argv[0]) if self._spec.is_python else None) or sys.executable
        commands = planning.commands_of(self._use.commands, self._use.files)
        return planning.prepare(commands, environment=self._env, cwd=os.getcwd(), python=python)

    def open(self) -> AnyPlace:
        """Do it. Raises PlatformError, UserError."""
        use, plan = self._use, self._plan()
        turn_table.begin()
        store, token = open_store(use.store), defaults.read_token(use.token_file)
        given = self._news.ask()
        if given is None and use.refresh and not self._news.is_first:
            given = self._wait_for_news()
        manifest, was_built = None, False
        if given:
            manifest = manifests.decode(given, name="the snapshot of the job")
            plan = taking(plan, manifest)
        elif given is None:
            manifest, was_built = self._find(plan, store, token)
        try:
            return self._place(plan, store, manifest, was_built=was_built, is_given=bool(given))
        except SnapshotDamaged as error:
            if given or manifest is None or was_built:
                raise
            self._say(f"the snapshot of the set-up is damaged, so it is built anew: {error}")
        manifest, was_built = self._find(plan, store, token, damaged=manifest)
        return self._place(plan, store, manifest, was_built=was_built, is_given=False)

    # --- finding it

    def _find(
        self, plan: BuildPlan, store: Store, token: str | None, damaged: SnapshotManifest | None = None
    ) -> tuple[SnapshotManifest | None, bool]:
        """Return the snapshot, and whether it was built here; None: the commands are to be run here."""
        asked = starting.RestoreRequest(
            refresh=self._use.refresh,
            damaged=damaged,
            head_start_s=0.0 if self._news.is_first else starting.HEAD_START_S,
            keep_in=os.path.join(self._use.cache, "snapshots"),
        )
        try:
            found = starting.find(
                plan, store, asked, clock=self._clock, sleep=self._progress.sleep, token=token,
                on_output=self._progress.heard, say=self._say, on_wait=self._progress.wait_for,
                capture=self._capture,
            )  # fmt: skip
        except SetupFailed:
            self._progress.show_output()
            raise
        except PlatformError as error:
            if not starting.must_run_commands(error):
                raise
            self._without_snapshot(error)
            return None, False
        if found.was_built and (outside := found.manifest.outside):
            more = f" and {len(outside) - 3} more" if len(outside) > 3 else ""
            self._say(
                f"changed meanwhile, and in no snapshot, so that no other node has it: {', '.join(outside[:3])}{more}"
            )
        return found.manifest, found.was_built

    def _without_snapshot(self, why: PlatformError) -> None:
        """No snapshot can be made: say what is done instead, or raise."""
        self._say(f"no snapshot can be made of the set-up, so its commands are run on each node: {why}")

    def _wait_for_news(self) -> bytes | None:
        """Wait until the first node has refreshed the set-up; None: it has not in the time that it has for that."""
        self._progress.doing = "waiting for the first node, which refreshes it"
        limit_s = self._spec.many.join_timeout_s if self._spec.many is not None else 0.0
        while self._clock.monotonic_s() - self._progress.began_s < limit_s:
            given = self._news.ask()
            if given is not None:
                return given
            self._progress.sleep(1.0)
        return None

    # --- restoring it

    def _place(
        self, plan: BuildPlan, store: Store, manifest: SnapshotManifest | None, *, was_built: bool, is_given: bool
    ) -> AnyPlace:
        """Return the place in which it is restored. Raises `SnapshotDamaged`, PlatformError."""
        found_s = self._clock.monotonic_s() - self._progress.began_s
        self._progress.doing = "restoring it"
        first: list[RestoredEnvironment] = []
        began_s = self._clock.monotonic_s()

        def start(hears: Hears) -> RestoredEnvironment:
            if first:  # made before it was known how long that took
                return first.pop()
            return self._restore(plan, store, manifest, hears, may_run=False)

        troubles, notes = _Relay(), _Relay()
        try:
            first.append(self._restore(plan, store, manifest, Hears(troubles, notes), may_run=not is_given))
        except SetupFailed:
            self._progress.show_output()
            raise
        except SnapshotDamaged as error:
            raise self._not_restored(error, store, manifest, is_given=is_given) from error
        brought = SetupBrought(
            plan=plan, manifest=manifest, was_built=was_built, found_s=found_s,
            restored_s=self._clock.monotonic_s() - began_s, output=self._progress.output(),
        )  # fmt: skip
        place = SetupPlace(self._spec, self._clock, self._say, brought, start)
        troubles.to(place.trouble)
        notes.to(place.note)
        return place

    def _not_restored(
        self, error: SnapshotDamaged, store: Store, manifest: SnapshotManifest | None, *, is_given: bool
    ) -> PlatformError:
        """Return what to raise: a snapshot that the job has is not built anew."""
        if manifest is None or not is_given:
            return error
        return PlatformError(self._why_not_given(store, manifest, error))

    def _why_not_given(self, store: Store, manifest: SnapshotManifest, error: SnapshotDamaged) -> str:
        """Return why a node that takes what its job has cannot: the store has nothing of it, or something that is damaged."""
        with suppress(SnapshotDamaged):
            if catalog.load(store, manifest.key) is None:
                return (
                    f"--setup-store {self._use.store}: it does not have the snapshot of the job, key {manifest.key[:16]}: it was"
                    " removed, or with several nodes, not all of them reach the same place"
                )
        return f"this node takes the set-up that the job has, and builds none: {error}; start the job anew"

    def _restore(
        self, plan: BuildPlan, store: Store, manifest: SnapshotManifest | None, hears: Hears, *, may_run: bool
    ) -> RestoredEnvironment:
        if manifest is None:
            return rerunning.run_commands(plan, "there is no snapshot", on_output=self._progress.heard)
        options = restoring.RestoreOptions(
            cache=os.path.join(self._use.cache, "snapshots"),
            block_cache=self._use.cache,
            launch=self._launch(),
            rungs=LADDER if may_run else tuple(rung for rung in LADDER if rung != "commands"),
            peers=peers_of(self._token) if self._token else None,
        )
        return restoring.restore(
            plan, manifest, store, options, on_output=self._progress.heard, on_problem=hears.trouble, on_note=hears.note
        )

    def _launch(self) -> str:
        """Return what the launch is known by; of use only for a snapshot that is mounted before it is here."""
        if "://" not in self._use.store:
            return ""
        from robust_run.launcher.agent.places.read_ahead import launch_of

        return launch_of(self._spec, "set-up")


def taking(plan: BuildPlan, manifest: SnapshotManifest) -> BuildPlan:
    """Return a node's plan with the job's snapshot, also where what was typed has changed since. Pure.

    Raises `SnapshotRefused` where the node differs in what the snapshot is laid over, or compiled for.
    """
    theirs = Key(digest=manifest.key, ingredients=manifest.ingredients)
    for each in key.compare(plan.key, theirs):
        if not each.name.startswith(_OF_THE_COMMANDS):
            raise SnapshotRefused(
                f"this node cannot take the job's set-up: {each.name} is {each.here or 'not there'} here and"
                f" {each.there or 'not there'} where it was built; make the nodes alike"
            )
    return msgspec.structs.replace(plan, key=theirs)
