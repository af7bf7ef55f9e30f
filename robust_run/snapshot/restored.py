"""A restored environment, as the process that starts workers sees it: how programs start in it, what it takes along, its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from robust_run.snapshot.restore import target
from robust_run.snapshot.restore.unpacked import UnpackedImage
from robust_run.snapshot.rules.restore_ladder import RestoreChoice
from robust_run.snapshot.rules.types import SnapshotManifest

if TYPE_CHECKING:
    from robust_run.prefetch.inside.handle import Inside
    from robust_run.prefetch.launch import Prepared
    from robust_run.snapshot.restore.directly import Held


class RestoredEnvironment:
    """An environment in which the set-up was done. It holds for all workers of this node until `stop`.

    restored.command(argv, folder)       what to execute instead of argv
    restored.environment(env)            what to start it with instead of env
    """

    def __init__(
        self,
        manifest: SnapshotManifest | None,
        choice: RestoreChoice,
        *,
        inside: Inside | None = None,
        held: Held | None = None,
        prepared: Prepared | None = None,
        on_path: UnpackedImage | None = None,
    ) -> None:
        """Made by `restoring.restore`.

        `held`: a namespace without a process that keeps it; `on_path`: what the rung "target" puts on `sys.path`.
        """
        self.manifest = manifest
        """None: the commands were run, and there is no snapshot."""
        self.choice = choice
        """The rung, and why no better one."""
        self.inside = inside
        """The process that keeps the namespaces, where one is needed; for `prefetch.window.close` where `prepared` is there."""
        self.prepared = prepared
        """What this launch knows of a lazy image; None: it is not lazy, and there is nothing to record."""
        self._on_path = on_path
        self._place = inside or held

    def __enter__(self) -> RestoredEnvironment:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def reason(self) -> str:
        """Why the environment is lost; "" while it is not."""
        return self.inside.reason if self.inside is not None else ""

    def command(self, argv: Sequence[str], working_directory: str) -> list[str]:
        """Return the argv that runs a program in the environment. It keeps its pid, its parent and its user.

        Valid for children of this process, until `stop`.
        """
        return self._place.command(argv, working_directory) if self._place is not None else list(argv)

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces that programs run in; empty: in ours."""
        return self._place.namespaces if self._place is not None else ()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a program is started with. Where it is at the same path, they stay as they are."""
        if self._on_path is not None and self.manifest is not None:
            return target.environment(self.manifest, self._on_path.items, self._on_path.path, env)
        return dict(env)

    def stop(self) -> None:
        """Let it go, after the workers have ended. Never raises."""
        if self._place is not None:
            self._place.stop()
        if self._on_path is not None:
            self._on_path.let_go()
            self._on_path = None
