"""The words of stop-time diagnostics: what is asked of a node, what it answers, what is concluded. No behaviour.

A `CheckProgramOrder` goes to one check program on its stdin, a `Result` comes back as a line of JSON. Both may come from another
node, so every text, number and list in them has a limit.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

CheckName = Literal["compute", "model", "memory", "disk", "exchange", "neighbours", "allreduce"]
"""compute: matrix products and memory of a device, bit by bit. model: a training step whose results are the same on all
nodes. memory: the host's memory. disk: a folder. exchange: all-to-all between the devices of a node. neighbours: all-gather
between two nodes. allreduce: between several."""

CHECKS: tuple[CheckName, ...] = ("compute", "model", "memory", "disk", "exchange", "neighbours", "allreduce")
"""All of them, in the order they are run in: what blames a node by itself comes before what needs its peers."""

Outcome = Literal["done", "failed", "hung", "crashed", "skipped"]
"""done: it measured. failed: it said why it could not. hung: it was killed at its limit. crashed: it ended without a word.
skipped: this node has nothing to check."""

Confidence = Literal["high", "medium", "low"]

Name = Annotated[str, Meta(max_length=255)]
Line = Annotated[str, Meta(max_length=500)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]
Seconds = Annotated[float, Meta(ge=0, le=86400)]
Port = Annotated[int, Meta(ge=0, le=65535)]

#: A result is one line of at most so many bytes.
MOST_RESULT_BYTES = 1 << 18
#: Processes of one check that talk to each other, on all nodes together.
MOST_RANKS = 65536


class Meeting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the processes of one check find each other, and which of them this is."""

    rank: Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
    nodes: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=MOST_RANKS)]
    """The node of each rank."""
    address: Name = "127.0.0.1"
    port: Port = 0
    """Where the store of rank 0 listens."""
    interface: Name = ""
    """Network interface for gloo; empty: its own choice."""
    listen_fd: Annotated[int, Meta(ge=-1, le=1 << 20)] = -1
    """Rank 0: an inherited descriptor that listens there; -1: it listens itself."""


class CheckProgramOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one check program is to do."""

    check: CheckName
    node: Name
    device: Name = "cpu"
    """cpu or cuda:N."""
    seconds: Seconds = 3.0
    """How long it measures; at least `passes` are made however long they take."""
    passes: Annotated[int, Meta(ge=1, le=1_000_000)] = 3
    size_bytes: Count = 0
    """What it works on; 0: what suits the check."""
    limit_s: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    """After this it is killed."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 31)] = 1
    folder: Annotated[str, Meta(max_length=4096)] = ""
    """disk: where it writes; empty: the folder for temporary files."""
    round: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Which of the rounds of this check it belongs to."""
    meeting: Meeting | None = None
    """None: it works alone."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one check program measured, or what became of it."""

    check: CheckName
    node: Name
    device: Name = ""
    outcome: Outcome
    kind: Line = ""
    """What it ran on and with (model of device, version of torch, threads): only results of one kind are compared."""
    figures: Annotated[dict[Name, float], Meta(max_length=64)] = {}
    """By name; `_per_s` is a rate, higher is better."""
    passes: Count = 0
    digests: Annotated[dict[Name, int], Meta(max_length=64)] = {}
    """How many passes gave which output, where outputs must be equal bit by bit."""
    stages: Annotated[dict[Name, Name], Meta(max_length=64)] = {}
    """Digest of each part of the first pass's output, in the order of computing."""
    wrong: Annotated[tuple[Line, ...], Meta(max_length=16)] = ()
    """What is wrong beyond doubt, a sentence each: data that came back different, no space left."""
    problem: Line = ""
    """Why there is no measurement."""
    unmet: bool = False
    """It failed before it could meet anybody: who is seen to hang then waited for it in vain."""
    group: Annotated[tuple[Name, ...], Meta(max_length=MOST_RANKS)] = ()
    """All nodes that took part, where it was a check of several; this one among them. `Session` fills it in: a node
    need not be believed, nor send it for each of 100 ranks."""
    round: Annotated[int, Meta(ge=0, le=1000)] = 0
    took_s: float = 0.0
    cpus: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    """Of the node, as many as its checks may run on; 0: not told."""
    others_cpus: Annotated[float, Meta(ge=0, le=1 << 20)] = 0.0
    """How many of these, on average, worked for others than this step of checks while its program ran."""
    others_by_figure: Annotated[dict[Name, Annotated[float, Meta(ge=0, le=1 << 20)]], Meta(max_length=64)] = {}
    """Likewise, while the passes of a figure were made; what is not told here is as `others_cpus`."""
    injected: bool = False
    """A fault was injected for a test (`faults`)."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan must know of a node."""

    name: Name
    devices: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=256)] = ("cpu",)
    address: Name = "127.0.0.1"
    interface: Name = ""
    folder: Annotated[str, Meta(max_length=4096)] = ""


class SuspectNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is at fault, as far as can be told."""

    node: str
    check: CheckName
    device: str = ""
    confidence: Confidence
    rule: str
    sentence: str


class Ambiguity(msgspec.Struct, frozen=True, kw_only=True):
    """Something is wrong with one of these nodes or what connects them, and it cannot be told which."""

    nodes: tuple[str, ...]
    check: CheckName
    rule: str
    sentence: str


class CheckJudgement(msgspec.Struct, frozen=True, kw_only=True):
    """What all results together say."""

    suspects: tuple[SuspectNode, ...] = ()
    ambiguous: tuple[Ambiguity, ...] = ()
    unchecked: tuple[str, ...] = ()
    """What could not be checked and why, a sentence each: it says nothing about a node."""
    notes: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    """Nodes of which nothing is said above but notes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the suspects' nodes, each once, the most certain first."""
        ranked = sorted(self.suspects, key=lambda each: ("high", "medium", "low").index(each.confidence))
        return tuple(dict.fromkeys(each.node for each in ranked))

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found and everything could be checked."""
        return not (self.suspects or self.ambiguous or self.unchecked)


# --- what goes between a node's runner and its parent -----------------------------------------------------------------


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one node is to do: one step after the other, the orders of a step at the same time."""

    steps: Annotated[
        tuple[Annotated[tuple[CheckProgramOrder, ...], Meta(min_length=1, max_length=256)], ...], Meta(max_length=256)
    ]
    to_come: Annotated[tuple[CheckName, ...], Meta(max_length=1024)] = ()
    """What is planned for the node afterwards."""


class Began(msgspec.Struct, frozen=True, tag="began", kw_only=True):
    """A step was started."""

    check: CheckName
    devices: tuple[str, ...]
    round: int
    limit_s: float


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """One order of a step is over."""

    result: Result


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """Everything is over, and nothing of it is left but these processes, which SIGKILL did not end."""

    left: tuple[int, ...] = ()


Said = Began | Ended | Finished
"""A line of a runner's stdout."""
