"""The words of a capture: what the process inside is told and says, what is found."""

from __future__ import annotations

import msgspec

from robust_run.snapshot.rules.types import Item, Method, Root, SnapshotPlatform


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One overlay that is mounted while the commands run."""

    target: str
    upper: str
    work: str


class CaptureOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What the process inside is to do."""

    layers: tuple[Layer, ...]
    """Without any, the commands run on the real folders."""
    watched: tuple[Layer, ...]
    """Overlays over what is not captured, to see what is written there. One that cannot be mounted is left out."""
    commands: tuple[str, ...]
    cwd: str
    private: tuple[str, ...]
    """Folders of the user in which changes are not looked at: home, caches, temporary files."""
    parent: int
    """Process without which nothing is to be run."""
    shell: str = "/bin/sh"
    entry: tuple[str, ...] = ()
    """Beginning of a command line that runs the rest inside an image (see `prefetch.inside`); empty: they run here."""
    enclose: bool = True
    """Whether the commands are in a process namespace, so that the kernel ends what they started; their mounts, too."""


class CaptureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the process inside says at its end."""

    refused: str = ""
    """Why nothing was run."""
    killed: str = ""
    """How what ran the commands was ended before they were done."""
    userns: bool = False
    watched: tuple[str, ...] = ()
    """Folders over which an overlay was mounted to watch."""
    began_ns: int = 0
    """Unix time by the coarse clock that file systems use."""
    codes: tuple[int, ...] = ()
    """Exit code of each command that was run; below 0: the signal."""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """What the commands changed, ready to be packed."""

    stage: str
    """Folder with `r0`, `w0`, `r1`..., and nothing else."""
    roots: tuple[Root, ...]
    items: tuple[Item, ...]
    """Ordered by root and path."""
    method: Method
    has_whiteouts: bool
    outside: tuple[str, ...]
    """What was changed outside the roots, as far as seen; the first of them."""
    dropped: tuple[str, ...]
    """Sockets, devices and pipes that were left out."""
    took_s: float
    platform: SnapshotPlatform | None = None
    """What it was compiled for, where that was not known before: inside an image."""
    reasons: tuple[str, ...]
    """Why better ways to capture were not possible."""
