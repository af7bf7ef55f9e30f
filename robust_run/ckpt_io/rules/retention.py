"""Which checkpoints stay. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from robust_run.ckpt_io.seen import Age, age

State = Literal["valid", "temporary", "damaged manifest", "damaged parts", "unfinished"]
"""valid: the manifest is, and all parts are there, as long as they should be (what is in them shows when they are read).
temporary: so they are, but the name says that it is not finished: it is no checkpoint until it is renamed.
damaged parts: the manifest is valid, and parts are missing or of another length.
unfinished: parts without a manifest, of a save that is under way or died."""


@dataclass(frozen=True)
class Leftover:
    """What a save has left on one target that no manifest vouches for."""

    target: int
    """0: in the root; else, in the further root of that number, from 1."""
    path: str
    """Within the folder of the checkpoint's name there; empty: that folder itself, which is none of a checkpoint."""
    modified_s: float | None
    """When something of it was last written, in seconds since the epoch; None: the store does not say."""


@dataclass(frozen=True)
class Meeting:
    """What nodes of a job that was over have told each other, where nobody has removed it."""

    name: str
    """Of its folder in the root."""
    modified_s: float | None
    """As of a leftover."""


@dataclass(frozen=True)
class RootEntry:
    """What lies under one name in a root."""

    name: str
    url: str
    state: State
    step: int | None = None
    created_s: float | None = None
    """Seconds since the epoch; None without a valid manifest."""
    size_bytes: int | None = None
    """Of all logical files; None without a valid manifest."""
    uuid: str | None = None
    reason: str = ""
    """Why it is not valid."""
    leftovers: tuple[Leftover, ...] = field(default=())
    is_link: bool = False
    """The name is a symbolic link on some target: what it leads to is shown, and never removed under this name."""
    written_by: str = ""
    """Which version of which job's code wrote it (see `newest.written_by`); empty: it does not say."""
    mark: str = ""
    """Who may remove it (see `keeping`); empty: only who is asked to."""


@dataclass(frozen=True)
class CheckpointRemoval:
    """Something that `prune` removes."""

    name: str
    reason: str
    leftover: Leftover | None = None
    """None: the whole checkpoint."""


def newest(found: Sequence[RootEntry]) -> RootEntry | None:
    """Return the valid checkpoint to resume from: of the highest step; of those without a step, the last one made.

    A checkpoint that says its step comes before one that does not; of what is there twice, the folder comes before a link to it.
    """
    valid = [checkpoint for checkpoint in found if checkpoint.state == "valid"]
    return max(valid, key=_age, default=None)


def plan_removals(
    found: Sequence[RootEntry], *, keep: int, keep_every: int | None, grace_s: float, now_s: float
) -> list[CheckpointRemoval]:
    """Return what may go.

    Kept are the `keep` newest valid checkpoints, at least one, and those whose step is a multiple of `keep_every`. What has no
    manifest goes when nothing of it was written for `grace_s`. So does what has a temporary name, if a valid one is newer: who
    wrote it died before renaming it. What has a damaged manifest or damaged parts stays, and does not count: it may be repaired.
    Links stay and do not count either: what they lead to has a name of its own.

    Raises:
        ValueError: `keep` or `keep_every` is less than 1, or `grace_s` negative.
    """
    if keep < 1 or (keep_every is not None and keep_every < 1) or grace_s < 0:
        raise ValueError(f"keep {keep} and keep_every {keep_every} must be 1 or more, grace_s {grace_s} 0 or more")
    removals = []
    own = [checkpoint for checkpoint in found if not checkpoint.is_link]
    valid = sorted((checkpoint for checkpoint in own if checkpoint.state == "valid"), key=_age, reverse=True)
    for rank, checkpoint in enumerate(valid):
        on_a_multiple = keep_every is not None and checkpoint.step is not None and checkpoint.step % keep_every == 0
        if rank >= keep and not on_a_multiple:
            removals.append(CheckpointRemoval(checkpoint.name, f"{rank} are newer, {keep} are kept"))
    newest_s = max((checkpoint.created_s or 0.0 for checkpoint in valid), default=0.0)
    for checkpoint in own:
        made_s = checkpoint.created_s
        if checkpoint.state == "temporary" and made_s is not None and made_s < newest_s and now_s - made_s > grace_s:
            reason = (
                f"its name says that it is not finished, it is {now_s - made_s:.0f} s old, and a newer one is there"
            )
            removals.append(CheckpointRemoval(checkpoint.name, reason))
    gone = {removal.name for removal in removals}
    for checkpoint in own:
        if checkpoint.name in gone or checkpoint.state not in ("valid", "temporary", "unfinished"):
            continue
        for leftover in checkpoint.leftovers:
            if leftover.modified_s is not None and now_s - leftover.modified_s > grace_s:
                age_s = now_s - leftover.modified_s
                removals.append(
                    CheckpointRemoval(checkpoint.name, f"no manifest names it, and it is {age_s:.0f} s old", leftover)
                )
    return removals


def plan_meetings(found: Sequence[Meeting], *, grace_s: float, now_s: float) -> list[CheckpointRemoval]:
    """Return which may go: those in which nothing was written for `grace_s`, which is longer than the end of a job takes."""
    return [
        CheckpointRemoval(
            each.name,
            f"nodes of a job met in it at the job's end, {now_s - each.modified_s:.0f} s ago",
            Leftover(0, "", each.modified_s),
        )
        for each in found
        if each.modified_s is not None and now_s - each.modified_s > grace_s
    ]


def _age(checkpoint: RootEntry) -> Age:
    return age(checkpoint.step, checkpoint.created_s or 0.0, checkpoint.name, is_link=checkpoint.is_link)
