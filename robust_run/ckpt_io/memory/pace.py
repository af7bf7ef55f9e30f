"""Which generations are copied to another node. Pure.

**Why not simply the newest.** After the loss of a node all ranks need parts of one and the same generation, and where sending
takes longer than a few steps, ranks' own buffers hold only newer ones by then: what counts is that all nodes' *copies* are of
the same one. Nodes do not ask each other. But steps are the same for all of them, so each sends the first generation of each
stretch of `stride` steps, a power of two: large enough that a generation has been sent when the next stretch begins. The
stretches of a stride begin where some of every smaller one do; nodes of a job are alike and find the same stride, and
neighbours tell each other theirs.

Nothing here makes a save wait, or be skipped: a part that is sent keeps one of its rank's three buffers, and saving goes on in
the other two. A generation that nobody had time to send is not sent.
"""

from __future__ import annotations

import msgspec

#: The longest of so many sends counts: nodes that are between two strides stay with the same one.
_SENDS = 4
MOST_STRIDE = 1 << 40


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How long sending takes, in steps."""

    lags: tuple[int, ...] = ()
    """How many steps newer the newest generation was when one had been sent: of the last ones."""
    receiver: int = 1
    """The stride that the node says to which is sent."""
    sender: int = 1
    """The stride that the node says which sends to us."""

    @property
    def own(self) -> int:
        """The least stride that this node keeps up with."""
        return min(MOST_STRIDE, 1 << max(self.lags, default=0).bit_length())

    @property
    def stride(self) -> int:
        """The one to go by."""
        return max(self.own, self.receiver, self.sender)


def sent(pace: Pace, lag: int) -> Pace:
    """Note that a generation has been sent, and how many steps newer the newest is by now."""
    return msgspec.structs.replace(pace, lags=(*pace.lags, max(0, lag))[-_SENDS:])


def begins_stretch(pace: Pace, before: int | None, step: int) -> bool:
    """Whether a step is the first of a stretch; `before` is the step that was saved before it."""
    return before is None or step < before or step // pace.stride != before // pace.stride
