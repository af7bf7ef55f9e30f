"""Ladders of ways to mount: facts of this machine → the best way that is possible, and why each better one is not. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import msgspec

POSSIBLE = ""
Rung = TypeVar("Rung", bound=str)


class KernelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine allows us. Each field is a reason why not; "" where it is possible."""

    mount_namespace: str = POSSIBLE
    """As we are, without a user namespace: root."""
    user_namespace: str = POSSIBLE
    fuse: str = POSSIBLE
    """Opening /dev/fuse for reading and writing."""
    squashfs: str = POSSIBLE
    """The kernel's own."""
    loop: str = POSSIBLE
    """A free loop device."""
    overlay: str = POSSIBLE
    """Of read-only layers, in the better of the two namespaces."""
    overlay_upper: str = POSSIBLE
    """With a layer that can be written."""
    squashfuse: str = POSSIBLE
    """squashfuse_ll, or squashfuse."""
    unsquashfs: str = POSSIBLE

    @property
    def any_namespace(self) -> str:
        """The better of the two: root of the machine needs no user namespace."""
        return self.mount_namespace and self.user_namespace


class Refusal(msgspec.Struct, Generic[Rung], frozen=True, array_like=True):
    """Why a rung is not possible."""

    rung: Rung
    reason: str


class Choice(msgspec.Struct, Generic[Rung], frozen=True, kw_only=True):
    """The best rung that is possible."""

    rung: Rung
    refused: tuple[Refusal[Rung], ...]

    def sentence(self) -> str:
        """Return what was chosen and why nothing better, for people."""
        why = "; ".join(f"not {each.rung}: {each.reason}" for each in self.refused)
        return f"{self.rung}{f' ({why})' if why else ''}"


def climb_down(rungs: Iterable[Rung], why_not: Callable[[Rung], str]) -> tuple[Rung | None, tuple[Refusal[Rung], ...]]:
    """Return the first rung, the best first, that is possible, None if none is, and why those before it are not."""
    refused: list[Refusal[Rung]] = []
    for rung in rungs:
        reason = why_not(rung)
        if reason == POSSIBLE:
            return rung, tuple(refused)
        refused.append(Refusal(rung, reason))
    return None, tuple(refused)
