"""Events and orders about the resume point of an attempt: what is asked of agents, what was chosen, what was passed over; and
about copies in memory, which it may lie in.

What agents see is for the controller alone (`checkpoints_seen.CheckpointsSeen`); the journal gets what was chosen.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Source = Literal["", "storage", "memory", "peer"]
"""storage: a folder of checkpoints. memory, peer: of a node of the attempt, or of another one. Empty: the beginning."""


class ResumePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where an attempt starts from: the same for all of its ranks."""

    source: Source = ""
    step: int | None = None
    """As the checkpoint says; None: it says none, or the attempt starts from the beginning."""
    uuid: str = ""
    """Of its manifest. Empty with a source: each node has a checkpoint of its own of this step."""
    name: str = ""
    """Of its folder, in the folder of checkpoints that each node was given; of what is in memory, `memory-ATTEMPT-STEP`."""
    address: str = ""
    """Path of the checkpoint where a node was given no such folder; of other sources, what `ckpt_io` opens."""
    created_unix_s: float | None = None
    """When it was made, by the clock of the machine that wrote it."""
    is_beginning: bool = False
    """A later attempt starts from the beginning, so what was trained before is lost. False with an empty source: where the
    program starts is not known."""

    @property
    def is_own(self) -> bool:
        """Whether each node has a checkpoint of its own of this step."""
        return self.source == "storage" and not self.uuid and self.step is not None


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that is newer than what was chosen, and why it was not."""

    step: int | None = None
    uuid: str = ""
    name: str
    why: str
    """A clause: what is wrong with it, and who says so."""


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank found wrong with the checkpoint that it was told to start from."""

    rank: int
    uuid: str
    name: str
    step: int | None = None
    reason: str
    """A clause."""


class SavedCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a rank has committed in its node's folder of checkpoints. It may be gone by now."""

    step: int | None = None
    uuid: str
    name: str
    created_unix_s: float = 0.0
    """When it was made, by the clock of the machine that wrote it."""


class PartsElsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """Parts in memory that ranks of one node start from, and that another node has."""

    ranks: tuple[int, ...]
    """Sorted; all of them run on one node of the attempt, unless they are `for_all`."""
    of: str = ""
    """Name of the host on which they ran before, where these are copies; empty: the other node's own."""
    name: str
    """Of the host that has them."""
    host: str
    port: int
    """Where its keeper gives them."""
    within_s: float = 0.0
    """What has not come so long after it was asked for is given up: that node was put out of the job. 0: no limit."""
    for_all: bool = False
    """Each node of the attempt needs them, and brings those that it lacks: more or fewer ranks load them than saved them."""


# --- an action, and the order that comes of it ----------------------------------------------------------------------


class LookForCheckpoints(msgspec.Struct, frozen=True, tag="look_for_checkpoints", kw_only=True):
    """Have agents say what checkpoints they see, choose, and tell `ResumeChosen` or `NoResumePoint`."""

    attempt: int
    nodes: tuple[str, ...] = ()
    """Whom to ask."""
    of: int = 1
    """Nodes of the attempt: so many must answer."""
    holders: tuple[str, ...] = ()
    """Nodes that have no part in it and may hold copies of what its ranks saved: these are asked, too, and only for that."""
    memory_only: bool = False
    """Of the order to an agent: the folder is not looked at."""
    folder: str
    """Where an agent looks that was given no folder of its own (--ckpt-dir); empty: only in memory, if no node was."""
    avoid: tuple[str, ...] = ()
    """Uuids of checkpoints that are known to be damaged."""
    untrusted: tuple[str, ...] = ()
    """Versions of the code that were rolled back: what they wrote comes last."""
    number: int = 0
    """Of the question to an agent, which its answer names."""
    names: tuple[str, ...] = ()
    """Folders that other nodes see: to be looked for by name, too."""
    most: int = 0
    """So many of the newest are told; 0: a few."""


# --- events ---------------------------------------------------------------------------------------------------------


class ResumeChosen(msgspec.Struct, frozen=True, tag="resume_chosen", kw_only=True):
    """Where an attempt starts from, chosen once for all of its nodes. The first fields are those of `ResumePoint`."""

    attempt: int
    source: Source = ""
    step: int | None = None
    uuid: str = ""
    name: str = ""
    address: str = ""
    created_unix_s: float | None = None
    steps_lost: int | None = None
    """So many steps are made again, where the program numbers its checkpoints by its optimizer's steps; None: not known."""
    lost_s: float | None = None
    """From when the checkpoint was made to the failure that ended the attempt before; None: there was none, or no checkpoint."""
    passed_over: tuple[PassedOver, ...] = ()
    unsure: tuple[str, ...] = ()
    """What nodes do not see of it, a sentence each."""
    elsewhere: tuple[PartsElsewhere, ...] = ()
    """What nodes get from the memory of others, where `source` is peer."""
    saved_world_size: int = 0
    """So many ranks saved it in memory, and `world_size` load it, each what it needs of all parts; 0: as many as load it."""
    world_size: int = 0

    def point(self) -> ResumePoint:
        """Return what the attempt's nodes are told."""
        return ResumePoint(
            source=self.source,
            step=self.step,
            uuid=self.uuid,
            name=self.name,
            address=self.address,
            created_unix_s=self.created_unix_s,
        )


class NoResumePoint(msgspec.Struct, frozen=True, tag="no_resume_point", kw_only=True):
    """It cannot be told where an attempt is to start, and from the beginning would throw training away."""

    attempt: int
    reason: str
    may_pass: bool = True
    """Whether another attempt may find one."""


class CheckpointSaved(msgspec.Struct, frozen=True, tag="checkpoint_saved", kw_only=True):
    """A rank of a node has saved in the folder of checkpoints: told soon for the first of an attempt, later ones seldom."""

    attempt: int
    node: str = ""
    saved: SavedCheckpoint


# --- copies in memory, on other nodes --------------------------------------------------------------------------------


class MemoryReady(msgspec.Struct, frozen=True, tag="memory_ready", kw_only=True):
    """The keeper of a node takes copies of what other nodes keep in memory, and gives them back; or does so no longer."""

    attempt: int = -1
    """In which that is said; -1: this node was not in one yet."""
    node: str = ""
    host: str = ""
    port: int = 0
    """0: it is gone, with all it held."""
    takes_copies: bool = True
    """Else it only gives away what ranks of its own node have saved."""


class MemoryGroups(msgspec.Struct, frozen=True, tag="memory_groups", kw_only=True):
    """Which nodes of an attempt share a parallel group: a fault may take them all."""

    attempt: int
    groups: tuple[tuple[int, ...], ...]
    """By place among the nodes of the attempt; each of them once."""


class MemoryPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Which node gets copies of what a node keeps."""

    node: str
    """Whose."""
    host: str
    port: int
    name: str
    """Of the host that gets them."""


class MemoryPeers(msgspec.Struct, frozen=True, tag="memory_peers", kw_only=True):
    """Have nodes of an attempt send copies of what their ranks save. A later one takes the place of an earlier one."""

    attempt: int
    peers: tuple[MemoryPeer, ...]
    """An agent is told its own."""


class MemoryNeeds(msgspec.Struct, frozen=True, tag="memory_needs", kw_only=True):
    """A node keeps every so many steps in memory, and copies every so many, because it is not fast enough for more."""

    attempt: int
    node: str = ""
    keeps: int = 1
    """A power of two, in steps."""
    copies: int = 1
    """Likewise."""


class MemoryStrides(msgspec.Struct, frozen=True, tag="memory_strides", kw_only=True):
    """Have nodes of an attempt keep and copy the same steps: those that the slowest of them does."""

    attempt: int
    nodes: tuple[str, ...]
    keeps: int
    copies: int


ResumeEvent = ResumeChosen | NoResumePoint | CheckpointSaved | MemoryReady | MemoryGroups | MemoryNeeds
