"""Which way an image is mounted: facts → a rung, with the reason why each better rung is not possible. Pure.

=======  ===================================================================================================
rung     what it is
=======  ===================================================================================================
warm     the image is mounted already (Apptainer, pyxis): only its file's hot blocks are read ahead
kernel   root: the kernel's squashfs on a loop device
userns   squashfuse_ll, in a user namespace where we are not root
unpack   the whole image is fetched and unpacked once, in parallel; namespaces put it in its place if there are any
plain    no image: the hot files of a folder are read ahead
=======  ===================================================================================================
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from robust_run.prefetch.errors import MountRefused

Rung = Literal["warm", "kernel", "userns", "unpack", "plain"]
Namespace = Literal["root", "user", "none"]
Tree = Literal["overlay", "binds"]
POSSIBLE = ""
#: The rungs that mount, the best first.
LADDER: tuple[Rung, ...] = ("kernel", "userns", "unpack")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What this machine allows us. Each field but the paths is a reason why not; "" where it is possible."""

    mount_namespace: str
    """As we are, without a user namespace: root."""
    user_namespace: str
    fuse: str
    """Opening /dev/fuse for reading and writing."""
    squashfs: str
    """The kernel's own."""
    loop: str
    """A free loop device."""
    overlay: str
    """Of read-only layers, in the better of the two namespaces."""
    overlay_upper: str
    """With a layer that can be written."""
    squashfuse: str | None
    """Path of squashfuse_ll, or of squashfuse."""
    unsquashfs: str | None
    already_mounted: str | None = None
    """Where the image of this job is mounted by others."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What is wanted."""

    served: bool
    """The image is not here: a block server shows it through FUSE."""
    writable: bool = False
    folder: bool = False
    """There is no image but a folder with an environment."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a rung is not possible."""

    rung: Rung
    reason: str


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best rung that is possible."""

    rung: Rung
    namespace: Namespace
    tree: Tree
    """How mount points that the image lacks come to be in it."""
    refused: tuple[Refusal, ...]

    def sentence(self) -> str:
        """Return what was chosen and why, for people."""
        why = "; ".join(f"not {each.rung}: {each.reason}" for each in self.refused)
        return f"{self.rung}{f' ({why})' if why else ''}"


def choose(facts: Facts, need: Need, allowed: Collection[Rung] = LADDER) -> Choice:
    """Return the best rung of those allowed. Raises `MountRefused`, with all reasons, where none is possible."""
    if need.folder:
        return Choice(rung="plain", namespace="none", tree="binds", refused=())
    if facts.already_mounted is not None:
        return Choice(rung="warm", namespace="none", tree="binds", refused=())
    namespace: Namespace = (
        "root" if facts.mount_namespace == POSSIBLE else "user" if facts.user_namespace == POSSIBLE else "none"
    )
    tree: Tree = "binds" if facts.overlay else "overlay"
    refused: list[Refusal] = []
    for rung in LADDER:
        reason = _why_not(rung, facts, need, namespace) if rung in allowed else "it was excluded"
        if reason == POSSIBLE:
            return Choice(rung=rung, namespace=namespace, tree=tree, refused=tuple(refused))
        refused.append(Refusal(rung=rung, reason=reason))
    reasons = "; ".join(f"{each.rung}: {each.reason}" for each in refused)
    raise MountRefused(f"the image cannot be used on this machine: {reasons}")


def _why_not(rung: Rung, facts: Facts, need: Need, namespace: Namespace) -> str:
    if need.writable and facts.overlay_upper and namespace != "none":
        return f"--image-writable needs overlayfs: {facts.overlay_upper}"
    if rung == "kernel":
        return facts.mount_namespace or facts.squashfs or facts.loop or (facts.fuse if need.served else POSSIBLE)
    if rung == "userns":
        if namespace == "none":
            return facts.user_namespace
        missing = "" if facts.squashfuse else "squashfuse_ll is not installed"
        return facts.fuse or missing
    if facts.unsquashfs is None:
        return "unsquashfs is not installed (squashfs-tools)"
    if namespace == "none":
        return f"it cannot be put in its place: {facts.user_namespace}"
    return POSSIBLE
