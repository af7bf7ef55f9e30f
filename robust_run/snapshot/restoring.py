"""Restoring a snapshot on this node: walks down the ladder (`restore.ladder`) until a rung holds.

What each rung makes is either whole or not used. A rung that changes the environment itself and is cut off half-way ends the
walk: no worse rung would be built on half an environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from robust_run.errors import PlatformError
from robust_run.snapshot import catalog, fetch, lazy
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.errors import RestoreRefused, SnapshotDamaged, SnapshotError, SnapshotRefused
from robust_run.snapshot.rerunning import rerun_in_place
from robust_run.snapshot.restore import directly, in_place, rerun, target
from robust_run.snapshot.restore.holders_answer import NoRung, chosen_in
from robust_run.snapshot.restore.mounting import not_the_same_path
from robust_run.snapshot.restore.place import PlaceOrder
from robust_run.snapshot.restore.unpacked import Folder, UnpackedImage, own_folder, unpack
from robust_run.snapshot.restored import RestoredEnvironment
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules import restore_ladder as ladder
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store import turn_table
from robust_run.store.errors import StoreError
from robust_run.store.types import Store, StoreOptions

if TYPE_CHECKING:
    from robust_run.prefetch.inside.handle import Inside
    from robust_run.prefetch.launch import Prepared
    from robust_run.prefetch.peers.types import PeerOptions


class RestoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a node restores."""

    cache: str
    """Folder of this node for images; see `defaults.cache_folder`."""
    block_cache: str | None = None
    """Folder for blocks of lazy images; None: they are never lazy."""
    least_lazy_bytes: int = lazy.LEAST_BYTES
    """Smaller images are brought as a whole."""
    launch: str = ""
    """Fingerprint of the launch (`prefetch.record.fingerprint`), for the hot list."""
    memory: str | None = "/dev/shm"  # noqa: S108 - a folder of ours is made in it
    """Where images are unpacked if that takes a small part of it, or the cache cannot hold them; None: only in the cache."""
    rungs: tuple[ladder.Rung, ...] = ladder.LADDER
    writable: bool = True
    """Whether workers may write to a mounted environment; it is in memory and ends with the job."""
    store_options: StoreOptions = StoreOptions()
    peers: PeerOptions | None = None
    """How nodes of a job share a lazy image; None: this one is alone."""
    limit_s: float = 600.0


def restore(
    plan: BuildPlan,
    manifest: SnapshotManifest,
    store: Store,
    options: RestoreOptions,
    *,
    on_output: Callable[[bytes], None] = lambda _: None,
    on_problem: Callable[[str], None] = lambda _: None,
    on_note: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> RestoredEnvironment:
    """Restore a snapshot in the best way that is possible here.

    `on_output` gets what the commands write, should they have to be run; `on_problem` a sentence when something goes wrong later,
    and `on_note` (None: the same) when something is worth knowing that fails nothing.
    Raises `SnapshotDamaged` for one that is; `SnapshotRefused` for one that is forged or foreign; `SetupFailed`; `RestoreRefused`
    with all reasons.
    """
    if manifests.is_of_image(manifest):
        raise SnapshotRefused(f"snapshot {manifest.key[:16]}: it was built inside an image: restore it with --image")
    manifests.check_fits(manifest, plan.platform, plan.key.digest)
    walk = _Walk(plan, manifest, store, options, on_output, on_problem, on_note or on_problem, progress)
    found = walk.down()
    catalog.note_use(store, manifest.key)
    return found


@dataclass(eq=False)
class _Walk:
    """One walk down the ladder."""

    _plan: BuildPlan
    _manifest: SnapshotManifest
    _store: Store
    _options: RestoreOptions
    _on_output: Callable[[bytes], None]
    _on_problem: Callable[[str], None]
    _on_note: Callable[[str], None]
    _progress: Callable[[int], None] | None
    _tried: dict[ladder.Rung, str] = field(default_factory=dict)
    _image: str = ""
    _unpacked: UnpackedImage | None = None

    def down(self) -> RestoredEnvironment:
        found = self._namespaced()
        if found is not None:
            return found
        while True:
            choice = ladder.choose(self._facts(), self._tried, self._options.rungs)
            try:
                return self._do(choice)
            except SnapshotDamaged:
                raise
            except PlatformError as error:
                self._tried[choice.rung] = str(error)
                self._stop_if_half(choice.rung, error)

    # --- in namespaces -----------------------------------------------------------------------------------------------

    def _namespaced(self) -> RestoredEnvironment | None:
        """Have it made in a namespace. None: that is not possible, and `_tried` has the reasons."""
        rungs = tuple(rung for rung in ladder.NAMESPACED if rung in self._options.rungs)
        reason = not_the_same_path(self._manifest)
        if reason or not rungs:
            self._tried.update(dict.fromkeys(rungs, reason))
            return None
        found = self._lazily(rungs)
        if found is not None:
            return found
        try:
            self._image = self._image or self._fetched()
            found = self._of_image(rungs)
            if found is None and fetch.bring_again(self._store, self._manifest, self._options.cache):
                self._on_note("the image in the cache of this node was damaged, and was brought anew")
                found = self._of_image(rungs)
        except SnapshotRefused:
            raise
        except (SnapshotError, StoreError) as error:  # no image, no rung that needs one
            self._tried.update(dict.fromkeys((rung for rung in ladder.LADDER if rung != "commands"), str(error)))
        return found

    def _of_image(self, rungs: tuple[ladder.Rung, ...]) -> RestoredEnvironment | None:
        """Have it made of an image that is here."""
        order = PlaceOrder(
            manifest=self._manifest, image=self._image, image_url=self._store.url, stage=self._stage(), rungs=rungs,
            unpack_in=self._folders(), writable=self._options.writable, limit_s=self._options.limit_s,
        )  # fmt: skip
        try:
            held = self._directly(order)
            if held is not None:
                _unstage(order)
                return RestoredEnvironment(self._manifest, ladder.RestoreChoice(rung=held.rung, refused=()), held=held)
            inside = self._start(order)
        except NoRung as error:
            self._tried.update(error.reasons(rungs))
            return None
        return RestoredEnvironment(self._manifest, chosen_in(inside), inside=inside)

    def _lazily(self, rungs: tuple[ladder.Rung, ...]) -> RestoredEnvironment | None:
        """Mount it before it is here. None: it is brought as a whole."""
        from robust_run.prefetch.launch import is_remote_here

        cached = fetch.is_sealed(fetch.cached_path(self._options.cache, self._manifest))
        folder = self._options.block_cache
        if folder is None or lazy.why_not(
            self._manifest,
            remote=is_remote_here(self._store.url),
            cached=cached,
            least_bytes=self._options.least_lazy_bytes,
        ):
            return None
        try:
            prepared = lazy.prepare(
                self._store, self._manifest, folder, self._options.launch, os.uname().machine,
                self._options.store_options, self._options.peers,
            )  # fmt: skip
            if not prepared.plan.served:
                return None
            for problem in prepared.problems:
                self._on_note(problem)
            inside = self._start(PlaceOrder(
                manifest=self._manifest, image=prepared.image_url, image_url=prepared.image_url, stage=self._stage(),
                lazy=_encoded(prepared), rungs=tuple(rung for rung in rungs if rung != "extract"),
                writable=self._options.writable, limit_s=self._options.limit_s,
            ))  # fmt: skip
        except PlatformError as error:
            why = error.words(rungs) if isinstance(error, NoRung) else str(error)
            self._on_note(f"the snapshot is brought as a whole: {why}")
            return None
        return RestoredEnvironment(self._manifest, chosen_in(inside), inside=inside, prepared=prepared)

    def _directly(self, order: PlaceOrder) -> directly.Held | None:
        try:
            return directly.hold(order)
        except RestoreRefused as error:
            raise NoRung(str(error)) from error

    def _start(self, order: PlaceOrder) -> Inside:
        from robust_run.prefetch.errors import InsideFailed
        from robust_run.prefetch.inside.handle import start

        try:
            return start(
                order, on_problem=self._on_problem, on_note=self._on_note, holder="robust_run.snapshot.restore.holder"
            )
        except InsideFailed as error:
            raise NoRung(str(error)) from error
        finally:
            _unstage(order)

    def _stage(self) -> str:
        return own_folder(os.path.join(self._options.cache, "stage"), unique=True)

    # --- without ------------------------------------------------------------------------------------------------------

    def _do(self, choice: ladder.RestoreChoice) -> RestoredEnvironment:
        if choice.rung == "commands":
            rerun_in_place(self._plan, self._on_output)
            return RestoredEnvironment(self._manifest, choice)
        found = self._opened()
        if choice.rung == "target":
            reason = target.why_not(self._manifest, found.items, target.base_of(self._manifest, found.items))
            if reason:
                raise RestoreRefused(reason)
            return RestoredEnvironment(self._manifest, choice, on_path=found)
        in_place.copy_over(self._manifest, found.items, found.path)
        found.let_go()
        return RestoredEnvironment(self._manifest, choice)

    def _facts(self) -> ladder.RestoreFacts:
        roots = [root.path for root in self._manifest.roots]
        return ladder.RestoreFacts(
            in_place=next(filter(None, map(in_place.why_not, roots)), ""),
            commands=next(filter(None, map(rerun.why_not, roots)), ""),
        )

    def _stop_if_half(self, rung: ladder.Rung, error: PlatformError) -> None:
        """Go no further if the environment itself was changed, but not to its end."""
        if rung == "commands":
            raise error
        if rung == "in-place" and in_place.state_of(self._manifest) == "copying":
            raise RestoreRefused(
                f"{self._manifest.roots[0].path}: the snapshot was copied half-way into it: {error};"
                " free what it needs and start again, or make the environment anew"
            ) from error

    def _opened(self) -> UnpackedImage:
        if self._unpacked is None:
            self._image = self._image or self._fetched()
            self._unpacked = unpack(self._manifest, self._image, self._folders())
        return self._unpacked

    def _fetched(self) -> str:
        return fetch.fetch(self._store, self._manifest, own_folder(self._options.cache), self._progress)

    def _folders(self) -> tuple[Folder, ...]:
        folders = [Folder(path=self._options.cache)]
        if self._options.memory is not None:
            with suppress(RestoreRefused):
                path = own_folder(os.path.join(self._options.memory, f"robust-run-{os.geteuid()}"))
                folders.append(Folder(path=path, is_memory=True))
        return tuple(folders)


def _unstage(order: PlaceOrder) -> None:
    """Remove a stage: it is a mount point in the namespace of the place only."""
    with suppress(OSError):
        os.rmdir(order.stage)


def _encoded(prepared: Prepared) -> msgspec.Raw:
    from robust_run.prefetch.inside.types import InsidePlan

    return msgspec.Raw(msgspec.json.encode(InsidePlan(
        image_url=prepared.image_url, block_map=prepared.block_map, cache_root=prepared.cache_root,
        hot=prepared.plan.hot, serve_options=msgspec.structs.replace(prepared.options, what=turn_table.SET_UP),
    )))  # fmt: skip
