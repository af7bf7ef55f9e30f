"""The environment of a job on one node in which its set-up was done, as a place for its workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from robust_run.atomic_file import write_file
from robust_run.clock import Clock
from robust_run.launcher.agent.places.made_place import Hears
from robust_run.launcher.agent.places.place import HeldPlace
from robust_run.launcher.agent.thread_messages import write_report
from robust_run.launcher.model.job import JobSpec
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.restored import RestoredEnvironment
from robust_run.snapshot.rules import manifest as manifests
from robust_run.snapshot.rules.key import blanked
from robust_run.snapshot.rules.types import Package, SnapshotManifest

if TYPE_CHECKING:
    from robust_run.prefetch.window import ImageStart

#: Variables that would have a launcher inside a worker do the set-up again.
OURS = ("ROBUST_SETUP", "ROBUST_SETUP_FILE", "ROBUST_REFRESH_SETUP")
#: A snapshot with one of these may have another torch or NCCL than this process would import.
_OF_TORCH = ("torch", "nvidia-nccl")


class SetupReport(msgspec.Struct, frozen=True, kw_only=True):
    """How the start of a node with a set-up was, for people and programs."""

    key: str
    commands: tuple[str, ...]
    """Credentials blanked."""
    restored: str
    """The rung, and why no better one."""
    was_built: bool
    """By this node, at this start."""
    found_s: float
    """How long it took to have the snapshot in the store: built, waited for, or there already."""
    restored_s: float
    image_sha256: str = ""
    """Empty, like what follows: the commands were run and there is no snapshot."""
    image_bytes: int = 0
    builder: str = ""
    built_unix_s: float = 0.0
    packages: tuple[Package, ...] = ()
    start: msgspec.Raw = msgspec.Raw(b"null")
    """`prefetch.window.ImageStart`: what was read of it until the first step, where it was mounted before it was here."""


class SetupBrought(msgspec.Struct, frozen=True, kw_only=True):
    """How a node came to its environment, besides the place itself."""

    plan: BuildPlan
    manifest: SnapshotManifest | None
    """None: there is no snapshot, the commands were run here."""
    was_built: bool
    found_s: float
    restored_s: float
    output: tuple[bytes, ...] = ()
    """What the commands wrote here."""


class SetupPlace(HeldPlace[RestoredEnvironment]):
    """One node's environment. Made by `setup_start.open_setup`; used as `HeldPlace` says."""

    kind = "setup"
    where = "the set-up's environment"

    def __init__(
        self,
        spec: JobSpec,
        clock: Clock,
        say: Callable[[str], None],
        brought: SetupBrought,
        start: Callable[[Hears], RestoredEnvironment],
    ) -> None:
        """`start` restores the environment, given who hears of it."""
        super().__init__(spec, f"set-up {brought.plan.key.digest[:16]}", clock, say, start)
        self._brought = brought
        self.uses = ("setup", "setup-built") if brought.was_built else ("setup",)
        self.snapshot = snapshot_of(brought)
        packages = brought.manifest.packages if brought.manifest is not None else ()
        self.has_our_torch = not any(each.name.lower().startswith(_OF_TORCH) for each in packages)

    @property
    def sentence(self) -> str:
        """See `HeldPlace`."""
        if self._brought.manifest is None:
            return f"{self.name}: {self._made.choice.sentence()}"
        return f"{self.name}: {words_of(self._brought)}; {self._made.choice.sentence()}"

    def program(self, argv: Sequence[str]) -> tuple[str, ...]:
        """See `HeldPlace`: at the same path, so as it is."""
        return tuple(argv)

    def enter(self, argv: Sequence[str]) -> tuple[str, ...]:
        """See `HeldPlace`."""
        return tuple(self._made.command(argv, self._cwd))

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """See `HeldPlace`."""
        return {name: value for name, value in self._made.environment(env).items() if name not in OURS}

    def report(self, path: str, start: ImageStart | None) -> None:
        """See `HeldPlace`. The first time, also what the installers wrote, and the snapshot for those who come later."""
        write_report(path, report_of(self._brought, self._made.choice.sentence(), start), self._say)
        if start is None:
            keep(path, self._brought, self._say)


def snapshot_of(brought: SetupBrought) -> bytes:
    """Return the manifest for other nodes of the job; empty: there is none. It keeps no signature: the sender is known."""
    return manifests.encode(brought.manifest) if brought.manifest is not None else b""


def words_of(brought: SetupBrought) -> str:
    """Return how a node came to its set-up, for people."""
    found = brought.manifest
    assert found is not None
    how = "built here" if brought.was_built else f"built by {found.builder}"
    packages = f"{len(found.packages)} package{'' if len(found.packages) == 1 else 's'}"
    return f"{packages}, {how} in {found.took_s:.1f} s, restored in {brought.restored_s:.2f} s"


def report_of(brought: SetupBrought, restored: str, start: ImageStart | None) -> SetupReport:
    """Return what is written of a start. `restored`: in which way, for people; `start`: what was read of it; None: not known."""
    made = SetupReport(
        key=brought.plan.key.digest,
        commands=tuple(map(blanked, brought.plan.setup.commands)),
        restored=restored,
        was_built=brought.was_built,
        found_s=round(brought.found_s, 3),
        restored_s=round(brought.restored_s, 3),
        start=msgspec.Raw(msgspec.json.encode(start)),
    )
    found = brought.manifest
    if found is None:
        return made
    return msgspec.structs.replace(
        made,
        image_sha256=found.image_sha256,
        image_bytes=found.image_bytes,
        builder=found.builder,
        built_unix_s=found.built_unix_s,
        packages=found.packages,
    )


def keep(path: str, brought: SetupBrought, say: Callable[[str], None]) -> None:
    """Write what the installers wrote, and the snapshot for those who come later, beside the report at `path`."""
    files = {
        path.removesuffix(".json") + ".log": b"".join(brought.output),
        os.path.join(os.path.dirname(path), manifests.NAME): snapshot_of(brought),
    }
    for name, data in files.items():
        try:
            if data:
                write_file(name, data)
        except OSError as error:
            say(f"{name}: {error.strerror}: it is not written down")
