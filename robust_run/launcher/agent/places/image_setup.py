"""Does the set-up of a job inside its image: the commands run in there once, and what they changed is laid over it on every node.

The image is mounted for the commands only where they have to be run; to find a snapshot, its block map is enough. Then it is
mounted with the snapshot over it, as the place of all workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.agent.places.block_peers import peers_of
from robust_run.launcher.agent.places.image_place import ImagePlace, MadeImage
from robust_run.launcher.agent.places.image_plan import make_folders, plan_of, prepared_image
from robust_run.launcher.agent.places.made_place import Hears
from robust_run.launcher.agent.places.place import AnyPlace
from robust_run.launcher.agent.places.setup_place import SetupBrought
from robust_run.launcher.agent.places.setup_start import SetupOpening
from robust_run.launcher.agent.places.snapshot_news import News
from robust_run.launcher.model.job import JobSpec
from robust_run.prefetch import blockmap, inside
from robust_run.prefetch.errors import InsideFailed
from robust_run.prefetch.launch import Prepared, is_remote_here
from robust_run.snapshot import fetch, lazy, planning
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture import in_image
from robust_run.snapshot.capture.capturing import CACHES, CaptureSetup
from robust_run.snapshot.capture.outside import SYSTEM_FOLDERS
from robust_run.snapshot.capture.types import Captured
from robust_run.snapshot.errors import SnapshotDamaged
from robust_run.snapshot.platforms import ImageFacts, gpu_class
from robust_run.snapshot.restore.unpacked import own_folder
from robust_run.snapshot.roots import is_within
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store import turn_table
from robust_run.store.types import Store


class ImageSetupOpening(SetupOpening):
    """One start of a job that has an image and a set-up."""

    def __init__(
        self,
        spec: JobSpec,
        env: Mapping[str, str],
        clock: Clock,
        run_folder: str | None,
        say: Callable[[str], None],
        news: News,
        token: str,
    ) -> None:
        """`run_folder`, `token`: see `image_start.open_image`."""
        assert spec.image is not None
        assert spec.setup is not None
        super().__init__(spec, spec.setup, env, clock, say, news, token)
        self._image, self._run_folder = spec.image, run_folder
        self._prepared: Prepared | None = None
        self._begun: list[inside.Begun] = []
        """A holder whose Python starts while the rest is found out."""
        self._capture = self._in_image

    def open(self) -> AnyPlace:
        """See `SetupOpening`."""
        turn_table.begin()  # the commands' image is fetched by a child of the holder, which must know of it
        self._begun.append(inside.begin())
        try:
            return super().open()
        finally:
            for unused in self._begun:
                unused.close()

    def _plan(self) -> BuildPlan:
        """See `SetupOpening`. Raises RobustRunError where the image is none."""
        make_folders(self._image, self._run_folder)
        self._prepared = prepared_image(self._spec, self._image, self._say, self._token)
        inner = self._inside_plan()
        mount_at = self._prepared.block_map.mount_at
        around = [("/", "/"), (mount_at, "")] if mount_at else []
        facts = ImageFacts(
            identity=blockmap.identity(self._prepared.block_map),
            machine=os.uname().machine,
            python=self._spec.argv[0] if self._spec.is_python and os.environ.get("PYTHON_EXEC") else "",
            gpu=gpu_class(),
            shown=(*around, *((each.destination, each.source) for each in inner.binds)),
        )
        commands = planning.commands_of(self._use.commands, self._use.files)
        return planning.prepare_in_image(
            commands, environment=self._env, cwd=os.getcwd(), image=facts, mount_at=mount_at
        )

    def _inside_plan(self) -> inside.InsidePlan:
        assert self._prepared is not None
        return plan_of(self._spec, self._image, self._prepared, self._env, self._run_folder)

    # --- building it

    def _in_image(self, setup: CaptureSetup, on_output: Callable[[bytes], None]) -> Captured:
        """Run the commands in the image, which is mounted for that."""
        self._progress.doing = "the image is being mounted"
        return in_image.capture(setup, self._room, on_output)

    def _room(self, order: in_image.RoomOrder) -> inside.Inside:
        plan = self._inside_plan()
        stage = os.path.join(os.path.abspath(plan.cache_root), inside.STAGE)
        more = [
            inside.Bind(source=os.path.join(stage, inside.IMAGE), destination=order.lower, read_only=True),
            inside.Bind(source=order.given, destination=order.given),
            *(inside.Bind(source=path, destination=path) for path in self._caches()),
        ]
        if plan.block_map.mount_at:
            more += self._untouched(plan.block_map.mount_at, order)
        options = plan.serve_options
        if options.peers is not None:  # no node knows of us yet: they find what came by then in our cache
            options = msgspec.structs.replace(options, peers=None)
        plan = msgspec.structs.replace(
            plan, binds=inside.ordered([*plan.binds, *more]), writable=order.changes, serve_options=options
        )
        made = inside.start(plan, on_problem=self._trouble, on_note=self._trouble, begun=self._holder())
        if not (self._python or made.python):
            made.stop()
            raise PlatformError(
                f"--image {self._image.url}: there is no python3 on the PATH of the image, which a set-up needs;"
                " set PYTHON_EXEC to where it is"
            )
        return made

    def _caches(self) -> list[str]:
        """Return folders of this machine in which installers keep what the next set-up needs not fetch again."""
        named = {self._env.get(name, "") for name in CACHES}
        return [path for path in named if os.path.isabs(path) and path != "/" and os.path.isdir(path)]

    def _holder(self) -> inside.Begun | None:
        return self._begun.pop() if self._begun else None

    def _trouble(self, sentence: str) -> None:
        self._say(f"image {self._image.url}: {sentence}")

    @property
    def _python(self) -> str:
        return self._spec.argv[0] if self._spec.is_python and os.environ.get("PYTHON_EXEC") else ""

    def _untouched(self, mount_at: str, order: in_image.RoomOrder) -> list[inside.Bind]:
        """Around an image of an environment this machine's own system is seen. It is not to be changed."""
        used = [
            os.path.realpath(path) for path in (os.getcwd(), self._env.get("HOME", ""), order.given, mount_at) if path
        ]
        return [
            inside.Bind(source=folder, destination=folder, read_only=True)
            for folder in SYSTEM_FOLDERS
            if os.path.isdir(folder)
            and not os.path.islink(folder)
            and not any(is_within(path, folder) for path in used)
        ]

    def _without_snapshot(self, why: PlatformError) -> None:
        raise PlatformError(
            f"--setup: no snapshot can be made, and without one nothing can be set up in an image: {why}"
        )

    # --- laying it over the image

    def _place(
        self, plan: BuildPlan, store: Store, manifest: SnapshotManifest | None, *, was_built: bool, is_given: bool
    ) -> AnyPlace:
        """See `SetupOpening`."""
        if manifest is None:
            raise PlatformError("the job has no snapshot of its set-up, so it cannot be laid over the image here")
        found_s = self._clock.monotonic_s() - self._progress.began_s
        self._progress.doing = "mounting the image with it"
        began_s = self._clock.monotonic_s()

        def start(hears: Hears) -> MadeImage:
            return self._start(store, manifest, hears)

        def brought() -> SetupBrought:
            return SetupBrought(
                plan=plan, manifest=manifest, was_built=was_built, found_s=found_s,
                restored_s=self._clock.monotonic_s() - began_s, output=self._progress.output(),
            )  # fmt: skip

        try:
            return ImagePlace(self._spec, self._image, self._clock, self._say, start, brought)
        except SnapshotDamaged as error:
            raise self._not_restored(error, store, manifest, is_given=is_given) from error

    def _start(self, store: Store, manifest: SnapshotManifest, hears: Hears) -> MadeImage:
        assert self._prepared is not None
        cache = own_folder(os.path.join(self._use.cache, "snapshots"))
        (root,) = manifest.roots
        layers = (*(("r0",) if root.changed else ()), *(("w0",) if root.removed else ()))
        lazily_made = self._lazily(store, manifest, cache, layers, hears)
        if lazily_made is not None:
            return lazily_made
        path = fetch.fetch(store, manifest, cache)
        laid = inside.Laid(path=path, layers=layers) if layers else None
        plan = msgspec.structs.replace(self._inside_plan(), laid=laid)
        try:
            made = inside.start(plan, on_problem=hears.trouble, on_note=hears.note, begun=self._holder())
        except InsideFailed:
            if not fetch.bring_again(store, manifest, cache):
                raise
            hears.note("the snapshot in the cache of this node was damaged, and was brought anew")
            made = inside.start(plan, on_problem=hears.trouble, on_note=hears.note)
        return MadeImage(made, self._prepared)

    def _lazily(
        self, store: Store, manifest: SnapshotManifest, cache: str, layers: tuple[str, ...], hears: Hears
    ) -> MadeImage | None:
        """Mount what the set-up changed before it is here; nodes of a job share its blocks. None: it is brought as a whole."""
        cached = fetch.is_sealed(fetch.cached_path(cache, manifest))
        if not layers or lazy.why_not(manifest, remote=is_remote_here(store.url), cached=cached):
            return None
        assert self._prepared is not None
        try:
            prepared = lazy.prepare(
                store, manifest, self._use.cache, self._launch(), os.uname().machine,
                peers=peers_of(self._token) if self._token else None,
            )  # fmt: skip
            if not prepared.plan.served:
                return None
            for problem in prepared.problems:
                hears.note(problem)
            blocks = inside.LaidBlocks(
                image_url=prepared.image_url, block_map=prepared.block_map, cache_root=prepared.cache_root,
                hot=prepared.plan.hot, serve_options=msgspec.structs.replace(prepared.options, what=turn_table.SET_UP),
            )  # fmt: skip
            laid = inside.Laid(path="", layers=layers, blocks=blocks)
            plan = msgspec.structs.replace(self._inside_plan(), laid=laid)
            made = inside.start(plan, on_problem=hears.trouble, on_note=hears.note, begun=self._holder())
            return MadeImage(made, self._prepared, prepared)
        except PlatformError as error:
            hears.note(f"the snapshot is brought as a whole: {error}")
            return None
