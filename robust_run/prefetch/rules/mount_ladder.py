"""Which way an image is mounted: facts → a rung, with the reason why each better rung is not possible. Pure.

=======  ===================================================================================================
rung     what it is
=======  ===================================================================================================
kernel   root: the kernel's squashfs on a loop device
userns   squashfuse_ll, in a user namespace where we are not root
unpack   the whole image is fetched and unpacked once, in parallel; namespaces put it in its place if there are any
=======  ===================================================================================================

Two ways need no mount of ours, and so no rung: an image that is mounted already (`warm`), and no image at all, but the files of
an environment (`environment`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from robust_run.mounts import ladder
from robust_run.mounts.errors import MountRefused
from robust_run.mounts.ladder import POSSIBLE, KernelFacts

Rung = Literal["kernel", "userns", "unpack"]
Namespace = Literal["root", "user", "none"]
Tree = Literal["overlay", "binds"]
#: The best first.
LADDER: tuple[Rung, ...] = ("kernel", "userns", "unpack")


@dataclass(frozen=True, kw_only=True)
class Need:
    """What is wanted."""

    served: bool
    """The image is not here: a block server shows it through FUSE."""
    writable: bool = False


class MountChoice(ladder.Choice[Rung], frozen=True, kw_only=True):
    """The best rung that is possible."""

    namespace: Namespace
    tree: Tree
    """How mount points that the image lacks come to be in it."""


def choose(facts: KernelFacts, need: Need, allowed: Collection[Rung] = LADDER) -> MountChoice:
    """Return the best rung of those allowed. Raises `MountRefused`, with all reasons, where none is possible."""
    namespace: Namespace = "none" if facts.any_namespace else "user" if facts.mount_namespace else "root"
    rung, refused = ladder.climb_down(
        LADDER, lambda each: _why_not(each, facts, need, namespace) if each in allowed else "it was excluded"
    )
    if rung is None:
        reasons = "; ".join(f"{each.rung}: {each.reason}" for each in refused)
        raise MountRefused(f"the image cannot be used on this machine: {reasons}")
    return MountChoice(rung=rung, namespace=namespace, tree="binds" if facts.overlay else "overlay", refused=refused)


def _why_not(rung: Rung, facts: KernelFacts, need: Need, namespace: Namespace) -> str:
    if need.writable and facts.overlay_upper and namespace != "none":
        return f"--image-writable needs overlayfs: {facts.overlay_upper}"
    if rung == "kernel":
        return facts.mount_namespace or facts.squashfs or facts.loop or (facts.fuse if need.served else POSSIBLE)
    if rung == "userns":
        return facts.any_namespace or facts.fuse or facts.squashfuse
    return facts.unsquashfs or (facts.any_namespace and f"it cannot be put in its place: {facts.any_namespace}")
