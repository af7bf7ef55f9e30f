"""Symbolic links in a folder of this machine's that is to be copied.

One that leads to something within the folder is kept as a link. One that leads out of it may lead to anybody's files (a folder
may come from anybody), so it is refused, unless the caller said that links are to be followed; then what it leads to is copied.
The cache of the Hugging Face hub is known: its snapshots consist of links into the `blobs` beside them, and nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from robust_run.ckpt_io.copying.trees import named, points_within
from robust_run.ckpt_io.errors import CheckpointError
from robust_run.store.local import kind_of, walk
from robust_run.store.types import Walked

Links = Literal["refuse", "follow", "tell"]
"""What is done with links that lead out: an error, what they lead to is copied, or they are told and left out."""


def resolved(walked: Sequence[Walked], root: str, links: Links) -> tuple[list[Walked], list[str]]:
    """Return what is to be copied, and what is not and why. Links that are left lead to something within the folder.

    Raises:
        CheckpointError: Links lead out, to nothing, or round in a circle.
        OSError: What a link leads to cannot be looked at.
    """
    return _Resolving(os.path.realpath(root), links).resolve(walked)


@dataclass
class _Resolving:
    """One folder's links."""

    root: str
    links: Links
    out: list[str] = field(default_factory=list)

    def resolve(self, walked: Sequence[Walked]) -> tuple[list[Walked], list[str]]:
        found = [each for one in walked for each in ([one] if one.kind != "link" else self._link(one, [self.root]))]
        if self.out and self.links == "refuse":
            raise CheckpointError(
                f"{self.root}: links that lead out of it: {named(self.out)}: --follow-links copies what they lead to"
            )
        return found, [f"{line}: it is not taken" for line in self.out]

    def _link(self, one: Walked, above: list[str]) -> list[Walked]:
        """Return what a link stands for. `above`: the real folders that it lies in."""
        place = os.path.join(self.root, one.path)
        real = os.path.realpath(place)
        if real == self.root or real.startswith(f"{self.root}/"):
            if points_within(one.path, one.target):
                return [one]
            target = os.path.relpath(real, os.path.dirname(os.path.join(self.root, one.path)))
            return [Walked(path=one.path, kind="link", target=target)]
        if self.links == "follow" or self._is_blob(real):
            return self._followed(one, real, above)
        self.out.append(f"{one.path} -> {one.target}")
        return []

    def _followed(self, one: Walked, real: str, above: list[str]) -> list[Walked]:
        try:
            status = os.stat(real)
        except FileNotFoundError as error:
            raise CheckpointError(f"{self.root}: {one.path} is a link to {one.target}, which is not there") from error
        kind = kind_of(status.st_mode)
        size_bytes = status.st_size if kind == "file" else 0
        found = [Walked(path=one.path, kind=kind, size_bytes=size_bytes, modified_s=status.st_mtime_ns / 1e9)]
        if kind != "folder":
            return found
        if any(folder == real or folder.startswith(f"{real}/") for folder in above):
            raise CheckpointError(f"{self.root}: {one.path} is a link to {real}, in which it lies itself: remove it")
        for each in walk(real):
            below = Walked(
                path=os.path.join(one.path, each.path),
                kind=each.kind,
                size_bytes=each.size_bytes,
                modified_s=each.modified_s,
                target=each.target,
            )
            found += [below] if each.kind != "link" else self._within(below, os.path.join(real, each.path), above, real)
        return found

    def _within(self, one: Walked, place: str, above: list[str], folder: str) -> list[Walked]:
        """Return what a link in a folder stands for that was come to by a link: what it leads to, wherever that is."""
        return self._followed(one, os.path.realpath(place), [*above, folder])

    def _is_blob(self, real: str) -> bool:
        """Whether it lies in the `blobs` of the repository of which the folder is (in) a snapshot, in the hub's cache."""
        repository, snapshots, _ = self.root.rpartition("/snapshots/")
        return bool(snapshots) and os.path.dirname(real) == f"{repository}/blobs" and os.path.isfile(real)
