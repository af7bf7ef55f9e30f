"""Checkpoints as the nodes of an attempt see them, merged: which there are, and who sees them whole.

Pure. What follows from it is `core.resume.choosing`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from robust_run.ckpt_io.seen import FolderLook, MemoryGeneration, SeenCheckpoint
from robust_run.launcher.core.state import MemoryAddress, MemoryHolder
from robust_run.launcher.model.resume_events import PassedOver, ResumePoint, SavedCheckpoint

#: A node that does not answer is waited for so long where others do, and where none does.
ANSWER_S, NOTHING_S = 10.0, 60.0
#: Caches of file systems show a folder as it was so long ago at most (acdirmax of NFS).
DELAY_S = 60.0
#: Checkpoints that a node tells at first, and at most.
MOST, MOST_OF_ALL = 8, 4096
#: Sentences and names that are kept.
NAMED = 4


class LookAsked(msgspec.Struct, kw_only=True):
    """One node of the attempt."""

    number: int
    """Of the newest question to it."""
    look: FolderLook | None = None
    """Its newest answer."""
    is_due: bool = True
    """The newest question is not answered."""
    held: tuple[MemoryGeneration, ...] = ()
    """What it said it holds in memory."""
    room_bytes: int | None = None
    """How much more it may take there; None: nothing is known that limits it."""


class MemoryWorld(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be known of an attempt to tell whether it can start from memory."""

    job: str
    """What its workers see as ROBUST_JOB."""
    world_size: int
    ranks: Mapping[str, tuple[int, ...]]
    """By node of the attempt: the ranks it will run."""
    untrusted: frozenset[int] = frozenset()
    """Attempts that ran a version of the code that was rolled back."""
    began_at: Mapping[int, int] = {}
    """By attempt: the step that it started from, 0 for the beginning."""
    held_by: tuple[MemoryHolder, ...] = ()
    """Nodes of the attempt before."""
    last: ResumePoint | None = None
    """What the attempt before started from, if that was in memory."""
    reach: Mapping[str, MemoryAddress] = {}
    """By node: where its keeper gives parts to others."""
    names: Mapping[str, str] = {}
    """Of their hosts."""
    evicted: frozenset[str] = frozenset()
    """Of these, nodes that were put out of the job: they may be ill."""


class Choosing(msgspec.Struct, kw_only=True):
    """One choice under way."""

    attempt: int
    of: int
    """Nodes that must answer."""
    began_s: float
    folder: str
    asked: dict[str, LookAsked] = {}
    """In the order of their ranks, as far as they were there."""
    holders: dict[str, LookAsked] = {}
    """Nodes that have no part in the attempt: what they hold in memory counts, what they see does not."""
    avoid: Mapping[str, PassedOver] = {}
    """What is known to be damaged, by uuid."""
    untrusted: tuple[str, ...] = ()
    most: int = MOST
    names: set[str] = set()
    """All that nodes were asked for by name."""
    rounds: int = 0
    """How often nodes were asked again."""
    apart: set[str] = set()
    """Nodes that are known to have a folder of their own."""
    own: bool = False
    """All of them are known to have one of their own."""
    last: ResumePoint | None = None
    """The newest checkpoint in storage that an earlier attempt of the job started from."""
    saved: SavedCheckpoint | None = None
    """The newest checkpoint that ranks of the job are known to have saved in the folder."""
    memory: MemoryWorld | None = None
    """None: nothing is kept in memory, or it does not count for this attempt."""


class ResumeCandidate(msgspec.Struct, kw_only=True):
    """One checkpoint, as all nodes together see it."""

    seen: SeenCheckpoint
    """As the first node has it that sees it whole, if one does."""
    names: set[str] = set()
    """Of its folder: another one on each node, perhaps."""
    whole: set[str] = set()
    unlooked: set[str] = set()
    faults: dict[str, str] = {}

    @property
    def seers(self) -> set[str]:
        """Return the nodes that see it, whole or not."""
        return {*self.whole, *self.unlooked, *self.faults}


class CheckpointSituation:
    """What is known now."""

    def __init__(self, choosing: Choosing, now_s: float, now_unix_s: float, host: Callable[[str], str]) -> None:
        self.choosing = choosing
        self.now_unix_s = now_unix_s
        self.host = host
        self.waited_s = now_s - choosing.began_s
        looks = {node: asked.look for node, asked in choosing.asked.items() if asked.look is not None}
        self.awaited = choosing.of - sum(not asked.is_due for asked in choosing.asked.values())
        """Nodes that have not answered the newest question."""
        self.silent = choosing.of - len(looks)
        """Nodes that have not answered any."""
        self.views = {node: look for node, look in looks.items() if not look.trouble}
        self.troubled = {node: look for node, look in looks.items() if look.trouble}
        self.seers = [node for node, look in self.views.items() if look.seen]
        self.candidates = _candidates(choosing, self.views, self.waited_s)
        self.usable = [each for each in self.candidates if each.seen.uuid not in choosing.avoid]
        shares = set().union(*(each.seers for each in self.candidates if len(each.seers) > 1))
        self.apart = choosing.apart - shares
        self.blind = [node for node, look in self.views.items() if not look.seen and node not in self.apart]

    def names(self, nodes: Iterable[str]) -> str:
        """Return what people call nodes, the first few of them."""
        hosts = list(dict.fromkeys(map(self.host, nodes)))
        return ", ".join(hosts[:NAMED]) + (", ..." if len(hosts) > NAMED else "")


def _candidates(choosing: Choosing, views: Mapping[str, FolderLook], waited_s: float) -> list[ResumeCandidate]:
    """Return all checkpoints whose manifest can be read, the newest first."""
    alike: dict[tuple[FolderLook, bool], list[str]] = {}
    for node, look in views.items():  # thousands of nodes, and most of them see the same
        alike.setdefault((look, choosing.asked[node].is_due and waited_s >= ANSWER_S), []).append(node)
    found: dict[str, ResumeCandidate] = {}
    for (look, gave_up), nodes in alike.items():
        told: set[str] = set()
        for seen in look.seen:
            if not seen.uuid or seen.uuid in told:
                continue  # of what is there twice the first counts: the folder, not a link to it
            told.add(seen.uuid)
            candidate = found.setdefault(seen.uuid, ResumeCandidate(seen=seen))
            candidate.names.add(seen.name)
            if seen.fault:
                candidate.faults.update(dict.fromkeys(nodes, seen.fault))
            elif seen.fault == "":
                candidate.seen = candidate.seen if candidate.whole else seen
                candidate.whole.update(nodes)
            elif not gave_up and waited_s < NOTHING_S + DELAY_S:
                candidate.unlooked.update(nodes)
    trusts = set(choosing.untrusted)
    return sorted(found.values(), key=lambda each: (each.seen.written_by not in trusts, each.seen.age), reverse=True)


def called(step: int | None, name: str) -> str:
    """Return what people call a checkpoint. A name may be of anything that a file system takes."""
    if step is not None and name.startswith("memory-"):  # see `ckpt_io.memory.types.generation_name`
        return f"step {step} in memory"
    return f"step {step}" if step is not None else name if name.isprintable() else repr(name)
