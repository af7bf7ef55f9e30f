"""Which of the checkpoints that `robust_run.checkpoint` has written may go (--ckpt-keep). Pure.

What is known, and what looks the same:

- *Who wrote it*: its manifest says so, and under which name. What a program has saved by itself, or renamed, has no mark, or
  another name. What was written without --ckpt-keep has no mark either: nobody has said that it may go.
- *That it is whole*: all its parts are there. Whether they can be read is known of what was loaded alone; so what a rank found
  damaged neither counts nor goes, and what the job started from stays, to be there when all that came later is not good enough.
- *That it is of this past*: this process wrote it, or it is no newer than what this process began from. What is newer and not
  its own was passed over, or this process began from something else: it neither counts nor goes.
- *That nobody else wants it*: a link with its content shows that somebody does. Who reads it right now is not known; so nothing
  is removed but while an attempt runs, all of whose ranks have loaded, or when the job is over.
"""

from __future__ import annotations

import msgspec

from robust_run.ckpt_io.rules.retention import CheckpointRemoval, RootEntry
from robust_run.ckpt_io.seen import Age, age

MARK = "kept by"
"""The fact of a manifest that says who may remove it."""
_OURS = "robust_run.checkpoint"


class KeepNewest(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that saves says of older checkpoints; rank 0's counts."""

    most: int
    """The newest so many stay."""
    session: str
    """Names the process: a word of its own, each time that the program starts."""
    began_step: int = 0
    """Of what it has loaded; 0: the beginning."""
    leave: tuple[str, ...] = ()
    """Uuids and names of checkpoints that neither count nor go: they are damaged, or the job started from them."""
    job: str = ""
    """Of the launcher; empty: there is none."""


def mark_of(rule: KeepNewest) -> dict[str, str]:
    """Return the facts of what is written under a rule."""
    return {MARK: f"{_OURS} {rule.session}"}


def plan(found: list[RootEntry], rule: KeepNewest) -> list[CheckpointRemoval]:
    """Return what may go, the oldest first: all that counts but the newest, and of each version of the job's code the newest."""
    linked = {each.uuid for each in found if each.is_link}
    counted = sorted((each for each in found if _counts(each, rule)), key=_age, reverse=True)
    versions: set[str] = set()
    removals = []
    for rank, each in enumerate(counted):
        version = _version_of(each, rule)
        is_newest_of_version = bool(version) and version not in versions
        versions.add(version)
        if rank >= max(rule.most, 1) and not is_newest_of_version and each.uuid not in linked:
            removals.append(CheckpointRemoval(each.name, f"{rank} are newer, {rule.most} are kept"))
    return removals[::-1]


def _counts(each: RootEntry, rule: KeepNewest) -> bool:
    who, _, session = each.mark.partition(" ")
    if each.state != "valid" or each.is_link or who != _OURS or each.step is None or each.name != f"step-{each.step}":
        return False
    if session == rule.session:
        return True
    return each.step <= rule.began_step and each.name not in rule.leave and each.uuid not in rule.leave


def _version_of(each: RootEntry, rule: KeepNewest) -> str:
    """Return the number of the version of the job's code that wrote it; empty: it was no version of this job's.

    A version has its digest behind its number once it is captured: `2`, then `2-0dfc173bba`.
    """
    job, _, version = each.written_by.partition(" ")
    return version.partition("-")[0] if rule.job and job == rule.job else ""


def _age(each: RootEntry) -> Age:
    return age(each.step, each.created_s or 0.0, each.name, is_link=each.is_link)
