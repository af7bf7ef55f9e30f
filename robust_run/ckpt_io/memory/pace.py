"""Which generations are kept and which are copied to another node, where not every step can be. Pure.

**Why not simply the newest.** An attempt starts from parts of one and the same generation on all nodes. A node that hashes or
sends slower than steps are made has gaps, and each has its own: what is left may have nothing in common for as long as that
lasts. Steps are the same for all nodes, so each takes the first that is saved of each stretch of `stride` steps, a power of two.
The stretches of a stride begin where some of every smaller one do: what a slow node has is among what fast ones would have.

**All nodes of a job go by one stride**, the largest that one of them needs: else fast ones would have given up, by the time it
counts, what the slow one has. There are two: `keeps` for what is kept at all, `copies` for what is sent. A node says to its
agent what it needs, the controller says the largest to all (`core.resume.strides`); neighbours tell each other with each copy,
besides. No rank waits for any of it: until it is known, a node goes by its own.

Nothing here makes a save wait: a part that is sent keeps one of its rank's three buffers, and saving goes on in the other two. A
generation that nobody had time to send is not sent.

**What looks the same:** a save that is skipped because a machine stood still for a moment. So a stride falls again: for what is
kept after `CALM` generations without a skip, for copies when the last `_SENDS` were fast. A save that is skipped because storage
is written, or a copy sent, does not count: no stride makes these shorter. **What starved machines do:** all skip, each raises its
stride, the largest counts, `MOST_KEEP` at most.
"""

from __future__ import annotations

import msgspec

#: The longest of so many sends counts: nodes that are between two strides stay with the same one.
_SENDS = 4
MOST_STRIDE = 1 << 40
#: Of what is kept: beyond it, skips cost less than what is lost between two generations.
MOST_KEEP = 16
#: So many generations that were kept without a skip halve the stride of what is kept.
CALM = 16
#: What a node needs is said at once where it grows, and where it has been less for so long.
LOWER_S = 60.0


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long sending takes, in steps."""

    lags: tuple[int, ...] = ()
    """How many steps newer the newest generation was when one had been sent: of the last ones."""
    receiver: int = 1
    """The stride that the node says to which is sent."""
    sender: int = 1
    """The stride that the node says which sends to us."""
    job: int = 1
    """The stride that all nodes are told."""

    @property
    def own(self) -> int:
        """The least stride that this node keeps up with."""
        return min(MOST_STRIDE, 1 << max(self.lags, default=0).bit_length())

    @property
    def stride(self) -> int:
        """The one to go by."""
        return max(self.own, self.receiver, self.sender, self.job)


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps are kept at all."""

    own: int = 1
    """The least stride at which this node need not skip."""
    calm: int = 0
    """Generations that were kept since it changed."""
    job: int = 1
    """The stride that all nodes are told."""

    @property
    def stride(self) -> int:
        """The one to go by."""
        return max(self.own, self.job)


def skipped(keeping: Keeping) -> Keeping:
    """Note that a step of a stretch's beginning could not be kept."""
    own = min(MOST_KEEP, 2 * keeping.stride)
    return msgspec.structs.replace(keeping, own=own, calm=0)


def kept(keeping: Keeping) -> Keeping:
    """Note that one was kept."""
    if keeping.own == 1:
        return keeping
    if keeping.calm + 1 < CALM:
        return msgspec.structs.replace(keeping, calm=keeping.calm + 1)
    return msgspec.structs.replace(keeping, own=keeping.own // 2, calm=0)


def sent(pace: Pace, lag: int) -> Pace:
    """Note that a generation has been sent, and how many steps newer the newest is by now."""
    return msgspec.structs.replace(pace, lags=(*pace.lags, max(0, lag))[-_SENDS:])


def begins_stretch(stride: int, before: int | None, step: int) -> bool:
    """Whether a step is the first of a stretch. `before`: the step whose save was asked for before it, kept or not."""
    return before is None or step < before or step // stride != before // stride


class Strides(msgspec.Struct, frozen=True, array_like=True):
    """What a node needs, or what all go by."""

    keeps: int = 1
    copies: int = 1


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has said that it needs."""

    strides: Strides = Strides()
    since_s: float = 0.0
    """Since when it has not needed as much."""


def to_say(said: Said, needed: Strides, now_s: float) -> tuple[Said, bool]:
    """Return what is said from now on, and whether that is news: more at once, less when it has been less for a while."""
    most = Strides(max(said.strides.keeps, needed.keeps), max(said.strides.copies, needed.copies))
    if most != said.strides:
        return Said(strides=most, since_s=now_s), True
    if needed == said.strides:
        return Said(strides=needed, since_s=now_s), False
    if now_s - said.since_s < LOWER_S:
        return said, False
    return Said(strides=needed, since_s=now_s), True
