"""Which way a snapshot is restored: facts → a rung, with the reason why each better rung is not possible. Pure.

=========  ================================================================================================
rung       what it is
=========  ================================================================================================
mount      root: the kernel reads the image; an overlay of it over each captured folder, at the same path
userns     the same without root: squashfuse_ll in a user namespace
extract    the image is unpacked to memory or local disk, once per node; an overlay of that, at the same path
in-place   it is unpacked and copied over an environment that no other job has, such as a container's own
target     it is unpacked and put before the environment on `sys.path`; not all snapshots allow that
commands   the set-up commands are run
=========  ================================================================================================

The first three happen in a mount namespace of their own and change nothing for anybody else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias

import msgspec

from robust_run.mounts import ladder
from robust_run.mounts.ladder import POSSIBLE
from robust_run.mounts.ladder import KernelFacts as Kernel
from robust_run.snapshot.errors import RestoreRefused

Rung = Literal["mount", "userns", "extract", "in-place", "target", "commands"]
LADDER: tuple[Rung, ...] = ("mount", "userns", "extract", "in-place", "target", "commands")
NAMESPACED: tuple[Rung, ...] = ("mount", "userns", "extract")


class RestoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of this machine and this snapshot; reasons like those of `Kernel`."""

    kernel: Kernel = Kernel()
    lazy: bool = False
    """The image is not here: a block server shows it through FUSE, and it cannot be unpacked."""
    same_path: str = POSSIBLE
    """Whether the captured folders are on this machine, and nothing else is mounted in them."""
    whiteouts: str = POSSIBLE
    """Whether removed names can be hidden by what is in the image."""
    unsquashfs: str = POSSIBLE
    in_place: str = POSSIBLE
    target: str = POSSIBLE
    commands: str = POSSIBLE


Refusal: TypeAlias = ladder.Refusal[Rung]


class RestoreChoice(ladder.Choice[Rung], frozen=True):
    """The best rung that is possible."""


class NothingLeft(RestoreRefused):
    """No rung is possible. `refused` says why, for each."""

    def __init__(self, message: str, refused: tuple[Refusal, ...] = ()) -> None:
        super().__init__(message)
        self.refused = refused


def choose(facts: RestoreFacts, tried: Mapping[Rung, str], allowed: Collection[Rung] = LADDER) -> RestoreChoice:
    """Return the best rung of those allowed. `tried`: why rungs failed that seemed possible. Raises `NothingLeft`."""
    rungs = (rung for rung in LADDER if rung in allowed)
    rung, refused = ladder.climb_down(rungs, lambda each: tried.get(each) or _why_not(each, facts))
    if rung is None:
        reasons = "; ".join(f"not {each.rung}: {each.reason}" for each in refused)
        raise NothingLeft(f"the snapshot cannot be restored on this machine: {reasons}", refused)
    return RestoreChoice(rung=rung, refused=refused)


def _why_not(rung: Rung, facts: RestoreFacts) -> str:
    kernel = facts.kernel
    needs_fuse = kernel.fuse if facts.lazy else POSSIBLE
    if rung == "mount":
        return (
            facts.same_path
            or kernel.mount_namespace
            or kernel.squashfs
            or kernel.loop
            or kernel.overlay
            or facts.whiteouts
            or needs_fuse
        )
    if rung == "userns":
        return (
            facts.same_path
            or kernel.any_namespace
            or kernel.fuse
            or kernel.squashfuse
            or kernel.overlay
            or facts.whiteouts
        )
    if rung == "extract":
        if facts.lazy:
            return "the image is not here"
        return facts.same_path or kernel.any_namespace or kernel.overlay or facts.unsquashfs
    if rung == "in-place":
        return facts.unsquashfs or facts.in_place
    if rung == "target":
        return facts.unsquashfs or facts.target
    return facts.commands
