"""Stacks of all ranks as one tree: what they have in common is written once, and it branches where they differ. Pure.

The clusters are those of `tracer.stacks.cluster`. A stretch without a branch is one block, so a tree has as many blocks as there are
differences, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from robust_run.report.pages.markup import join, text
from robust_run.report.pages.states import RankState, worst
from robust_run.report.pages.words import count
from robust_run.tracer.stacks.cluster import Cluster
from robust_run.tracer.words import span

#: Branches of a tree; the rest is counted.
MOST_CLUSTERS = 40
#: Frames of one block; those in its middle are left out and counted.
MOST_FRAMES = 24
#: Folders of a path that are shown.
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python", "torch/", "<frozen", "threading.py")


class Branch(msgspec.Struct, kw_only=True):
    """A stretch of frames that all below share, outermost first."""

    frames: tuple[str, ...]
    below: list[Branch]
    clusters: list[Cluster]
    """Those whose stack ends here."""

    def ranks(self) -> set[int]:
        """Return all ranks that are here or below."""
        own = {rank for cluster in self.clusters for rank in cluster.ranks}
        return own.union(*(branch.ranks() for branch in self.below))


def tree_of(clusters: Sequence[Cluster]) -> Branch:
    """Return the tree of some stacks; its root has no frames of its own unless all share some."""
    return _grow([(tuple(reversed(cluster.frames)), cluster) for cluster in clusters])


def _grow(stacks: list[tuple[tuple[str, ...], Cluster]]) -> Branch:
    shared = 0
    shortest = min((len(frames) for frames, _ in stacks), default=0)
    while shared < shortest and len({frames[shared] for frames, _ in stacks}) == 1:
        shared += 1
    prefix = stacks[0][0][:shared] if stacks else ()
    ending = [cluster for frames, cluster in stacks if len(frames) == shared]
    rest: dict[str, list[tuple[tuple[str, ...], Cluster]]] = {}
    for frames, cluster in stacks:
        if len(frames) > shared:
            rest.setdefault(frames[shared], []).append((frames[shared:], cluster))
    return Branch(frames=prefix, below=[_grow(each) for each in rest.values()], clusters=ending)


def stack_trees(clusters: Sequence[Cluster], states: Mapping[int, RankState]) -> str:
    """Return the trees: of the ranks themselves, then of each kind of their children."""
    roles = list(dict.fromkeys(cluster.role for cluster in clusters))
    pieces = []
    for role in roles:
        same = [cluster for cluster in clusters if cluster.role == role]
        same.sort(key=lambda cluster: (len(cluster.ranks), cluster.ranks))
        left_out = same[MOST_CLUSTERS:]
        title = f"<h3>{text(role)} processes of ranks</h3>" if role not in ("", "rank") else ""
        more = ""
        if left_out:
            ranks = {rank for cluster in left_out for rank in cluster.ranks}
            more = (
                f"<p class=dim>{len(left_out)} more kinds of stack, of {count(len(ranks), 'rank')}, are not shown</p>"
            )
        tree = _branch(tree_of(same[:MOST_CLUSTERS]), states, is_root=True)
        pieces.append(f"{title}<ul class=tree>{tree}</ul>{more}")
    return join(pieces)


def _branch(branch: Branch, states: Mapping[int, RankState], *, is_root: bool = False) -> str:
    ranks = tuple(sorted(branch.ranks()))
    if is_root and not branch.frames and not branch.clusters:
        return join(_branch(each, states) for each in _suspicious_first(branch.below, states))
    who = ""
    if branch.clusters or is_root or not branch.below:
        state = worst([states[rank].state for rank in ranks if rank in states]) if branch.clusters else "working"
        what = _what(branch.clusters) if branch.clusters else ""
        who = f"<span class='who s-{state}'>{_named(ranks)}{what}</span>"
    elif len(ranks) < len(states):
        who = f"<span class=who>{_named(ranks)}</span>"
    below = join(_branch(each, states) for each in _suspicious_first(branch.below, states))
    return f"<li>{join(_frames(branch.frames))}{who}{f'<ul>{below}</ul>' if below else ''}</li>"


def _suspicious_first(branches: Sequence[Branch], states: Mapping[int, RankState]) -> list[Branch]:
    def place(branch: Branch) -> tuple[int, int]:
        ranks = branch.ranks()
        guilty = any(states[rank].state in ("culprit", "suspect") for rank in ranks if rank in states)
        return (not guilty, len(ranks))

    return sorted(branches, key=place)


def _named(ranks: Sequence[int]) -> str:
    return f"{count(len(ranks), 'rank')} ({span(ranks)})" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else ""


def _what(clusters: Sequence[Cluster]) -> str:
    return ", in communication" if all(cluster.waiting for cluster in clusters) else ", not in communication"


def _frames(frames: Sequence[str]) -> list[str]:
    shown = [*frames]
    if len(frames) > MOST_FRAMES:
        half = MOST_FRAMES // 2
        shown = [*frames[:half], f"… {len(frames) - 2 * half} frames …", *frames[-half:]]
    return [
        f"<span class='frame{' plumbing' if any(each in frame for each in _LIBRARIES) else ' user'}'>{text(frame, 300)}</span>"
        for frame in shown
    ]
