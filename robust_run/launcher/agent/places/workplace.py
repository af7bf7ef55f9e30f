"""Where the workers of a node run: on this machine as it is, or in a place: an image, or an environment with a set-up done.

It also holds what is read ahead of them. Without --image, --setup and --prefetch-env nothing here does anything, and nothing is
imported for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.model.job import JobSpec

if TYPE_CHECKING:
    from robust_run.clock import Clock
    from robust_run.health.types import Finding
    from robust_run.launcher.agent.checkpoint.mount import CheckpointMount
    from robust_run.launcher.agent.places.image_warmth import ImageWarmth
    from robust_run.launcher.agent.places.place import OpenedPlace
    from robust_run.launcher.agent.workers.starter import Starter, StartPlan
    from robust_run.launcher.agent.workers.store import StartsHelpers
    from robust_run.launcher.records.run_directory import RunDirectory


class Workplace:
    """One node's, from its first worker to its last."""

    def __init__(self, spec: JobSpec, opened: OpenedPlace | None) -> None:
        """`opened`: what became of the job's place on this node; None: it has none."""
        self.place = opened.place if opened is not None else None
        """None: workers run where we do."""
        self._ahead = opened.ahead if opened is not None else None
        has_place = spec.image is not None or spec.setup is not None
        self.spec = msgspec.structs.replace(spec, image=None, setup=None) if has_place else spec
        """The job as it looks from inside."""
        self.warm_python = (
            spec.argv[0] if spec.image is not None and spec.is_python and self.place is not None else None
        )
        """What a warm process would be: in an image, the Python there, also where PYTHON_EXEC names one; None: ours."""
        self._warmth: ImageWarmth | None = None
        self.opening = opened.opening if opened is not None else None
        """How long the place took to make, until that has been told of a start."""
        self.ready_s: float | None = None
        """When this node had nothing more to do than to meet the others; None: it has none to meet."""
        self.came_before: dict[str, int] | None = None
        """By what: bytes that had been fetched when the newest attempt was ordered; None: it is the first here."""
        self.has_begun = False
        """Whether the start of an attempt has been looked at."""
        self.mount: CheckpointMount | None = None
        """The checkpoints as files (--ckpt-mount); None: none was asked for."""

    def show_checkpoints(
        self, env: Mapping[str, str], clock: Clock, run_directory: RunDirectory, say: Callable[[str], None]
    ) -> None:
        """Mount them where workers will run, if that was asked for. Raises PlatformError."""
        if self.spec.ckpt_mount and self.spec.ckpt_dir is not None:
            from robust_run.launcher.agent.checkpoint.mount import CheckpointMount
            from robust_run.launcher.records.memory_folders import FILES

            folder = f"{run_directory.memory}/{FILES}"
            self.mount = CheckpointMount(
                self.spec.ckpt_dir, folder, env, clock, say, self._namespaces, run_directory.store_log
            )

    def _namespaces(self) -> tuple[int, ...]:
        return () if self.place is None else self.place.namespaces

    def enter_through(self, starter: Starter, start_helper: StartsHelpers) -> None:
        """Have workers, and a warm process if there can be one, started in the place."""
        mount, place = self.mount, self.place
        if place is None:
            starter.enter = starter.enter if mount is None else mount.enter
            return
        from robust_run.launcher.agent.places.image_warmth import ImageWarmth

        def enter(argv: tuple[str, ...]) -> tuple[str, ...]:
            inner = place.enter(argv)
            return inner if mount is None else mount.enter(inner)

        starter.enter, starter.moved = enter, place.moved
        self._warmth = ImageWarmth(starter, enter, start_helper, place.where, place.library)

    def read_ahead(
        self, env: Mapping[str, str], clock: Clock, run_directory: RunDirectory, say: Callable[[str], None]
    ) -> None:
        """Begin to read what earlier starts read, if that was asked for."""
        if not self.spec.prefetch_env:
            return
        from robust_run.launcher.agent.places.read_ahead import EnvironmentAhead

        notes, report = f"{run_directory.memory}/environment.notes", run_directory.start_of("environment")
        self._ahead = EnvironmentAhead(self.spec, env, clock, notes, report, say)

    # --- starting workers

    def is_ready(self) -> bool:
        """Whether an attempt may begin. False: something is being made anew, ask again soon; never waits itself."""
        are_ready = [each.is_ready() for each in (self.place, self.mount) if each is not None]
        return all(are_ready)

    def begin(self, group_rank: int, store: str, run_directory: RunDirectory, told: Mapping[str, str]) -> bool:
        """An attempt is about to start. Return whether all that ran in the place before is lost. Raises PlatformError.

        `store`: the address of the attempt's store, the same on all nodes. `told`: variables of the first worker here.
        """
        place = self.place
        is_another = place is not None and place.begin(group_rank, store, run_directory.start_of(place.kind))
        if self.mount is not None:
            self.mount.begin(told)
        return is_another

    @property
    def has_our_torch(self) -> bool:
        """Whether the torch and the NCCL of the workers are those of this process."""
        return self.place is None or self.place.has_our_torch

    def meet(self, peers: Sequence[str]) -> None:
        """Share blocks of an image with these nodes from now on, HOST:PORT each."""
        if self.place is not None:
            self.place.meet(peers)

    def program(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return a worker's command line as it is in its place."""
        return argv if self.place is None else self.place.program(argv)

    def environment(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Return what programs there find in their environment."""
        return env if self.place is None else self.place.environment(env)

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return what the first worker of the first attempt gets besides, to note what it opens."""
        return {} if self._ahead is None else self._ahead.variables(env)

    def can_be_warm(self, twin: StartPlan, age_s: float) -> bool:
        """Whether a warm process may be started now; see `ImageWarmth`."""
        return self._warmth is None or self._warmth.is_possible(twin, age_s)

    # --- while they run

    def pids(self) -> list[int]:
        """Return processes of ours that outlive an attempt."""
        mine = [] if self.mount is None else self.mount.pids()
        return mine if self.place is None else [*self.place.pids(), *mine]

    def look(self, pids: Sequence[int], *, stepped: bool) -> None:
        """Call now and then: what workers (`pids`) read until their first step (`stepped`) is read ahead the next time."""
        if self.place is not None:
            self.place.look(stepped=stepped)
        if self.mount is not None:
            self.mount.look()
        if self._ahead is not None:
            self._ahead.look(pids, stepped=stepped)

    def blame(self, finding: Finding | None, exit_code: int | None) -> Finding | None:
        """Return why a rank failed: what it shows itself, or the place if that failed."""
        if self.mount is not None:
            finding = self.mount.blame(finding, exit_code)
        return finding if self.place is None else self.place.blame(finding, exit_code)

    def close(self, *, did_well: bool) -> None:
        """Let it go, after the workers. `did_well`: the job ended as it should."""
        if self.mount is not None:
            self.mount.stop()
        if self.place is not None:
            self.place.stop(did_well=did_well)
        if self._ahead is not None:
            self._ahead.stop(did_well=did_well)
