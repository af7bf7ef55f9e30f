"""Ranks of one load must read one checkpoint: who opened what, and whether that is the same. Pure.

A path is not enough to go by. Two nodes may see another state of one folder (caches of a file system), each have a folder of
that name of its own, or come before and after a save under the same name. Weights of one step beside those of another train on
without an error, so a load refuses them.

One exception: the launcher found that each node saves checkpoints of its own and chose the step of which all have one
(ROBUST_RESUME_OWN). Then ranks may load what they were told, each from its own node's, if the steps are the same.
"""

from __future__ import annotations

import os
import os.path
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from robust_run.ckpt_io.rules.types import Manifest

#: Checkpoints that a message names, and of ranks that opened one.
_NAMED = 4
_SHORT = 8


class OpenedByRank(NamedTuple):
    """What one rank has opened."""

    rank: int
    uuid: str
    step: int | None
    url: str
    own_of: str = ""
    """The node whose own checkpoint it is, as the launcher chose for it; empty: the launcher chose one for all, or none."""
    shares_with: tuple[int, ...] = ()
    """Ranks that get bytes from each other's reads."""


def opened_by(
    rank: int, manifest: Manifest, url: str, *, shares_with: Iterable[int] = (), env: Mapping[str, str] = os.environ
) -> OpenedByRank:
    """Return what a rank has opened. `env`: what its launcher has told it."""
    is_chosen = bool(url) and os.path.normpath(env.get("ROBUST_RESUME", "")) == os.path.normpath(url)
    is_own = is_chosen and env.get("ROBUST_RESUME_OWN") == "1"
    return OpenedByRank(
        rank, manifest.uuid, manifest.step, url, env.get("GROUP_RANK", "") if is_own else "", tuple(shares_with)
    )


def disagreement(opened: Iterable[OpenedByRank]) -> str:
    """Return who opened what, as a message, if that is not the same checkpoint; else empty."""
    ranks: dict[str, list[OpenedByRank]] = {}
    listed = sorted(opened, key=lambda one: one.rank)
    for each in listed:
        ranks.setdefault(each.uuid, []).append(each)
    if len(ranks) < 2 or not (rule := _broken_rule(listed)):
        return ""
    said = [_words(group) for group in list(ranks.values())[:_NAMED]]
    more = [f"{len(ranks) - _NAMED} more"] if len(ranks) > _NAMED else []
    return f"ranks opened different checkpoints: {'; '.join(said + more)}. {rule}"


def _broken_rule(opened: list[OpenedByRank]) -> str:
    """Return why ranks may not load different checkpoints; empty: they may, each node its own."""
    if not all(each.own_of for each in opened):
        return (
            "All of them must load the same: load the path in ROBUST_RESUME (robust-run --ckpt-dir chooses one for all nodes), "
            "and save none under this name while it is loaded"
        )
    if len({each.step for each in opened}) > 1 or opened[0].step is None:
        return "Each node may load its own, but of the same step: save none under this name while it is loaded"
    uuids: dict[str, set[str]] = {}
    for each in opened:
        uuids.setdefault(each.own_of, set()).add(each.uuid)
    if any(len(found) > 1 for found in uuids.values()):
        return (
            "Each node may load its own, but all ranks of a node the same: save none under this name while it is loaded"
        )
    uuid_of = {each.rank: each.uuid for each in opened}
    if any(uuid_of.get(rank, each.uuid) != each.uuid for each in opened for rank in each.shares_with):
        return "Each node may load its own, but reads cannot be shared between nodes then: give broadcast_group ranks of one node"
    return ""


def _words(group: list[OpenedByRank]) -> str:
    first = group[0]
    numbers = ", ".join(str(each.rank) for each in group[:_NAMED]) + (", ..." if len(group) > _NAMED else "")
    step = f"step {first.step} in " if first.step is not None else ""
    return f"rank{'s' if len(group) > 1 else ''} {numbers}: {step}{first.url} (manifest {first.uuid[:_SHORT]})"
