"""Which steps a node keeps: the same of all its ranks, and the same as other nodes, as soon as these are known. In the keeper's
thread.

What that is good for, and the rules, are `pace`'s.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from robust_run.ckpt_io.memory import pace
from robust_run.ckpt_io.memory.agent_protocol import GoBy, KeeperNote, NeedsStrides
from robust_run.ckpt_io.memory.pace import Keeping, Said, Strides

#: Steps whose fate is remembered: ranks of a node are not farther apart.
_REMEMBERED = 64


class Striding:
    """One node's."""

    def __init__(self, tell: Callable[[NeedsStrides | KeeperNote], None], now_s: Callable[[], float]) -> None:
        self._tell, self._now_s = tell, now_s
        self.keeping = Keeping()
        self.copies = 1
        """What all nodes go by where they send copies, as far as is known."""
        self._attempt = -1
        self._ordered: GoBy | None = None
        """The newest order; of an attempt that may not have begun."""
        self._wanted: dict[int, bool] = {}
        """By step of this attempt: whether it is kept. One answer for all ranks of the node."""
        self._kept = self._skipped = -1
        """The newest step that had a buffer, and the newest that had none, on one rank at least."""
        self._said = Said()
        self._has_told = False

    def begin_attempt(self, attempt: int) -> None:
        """Begin anew: other nodes, perhaps, and other states."""
        self._attempt, self.keeping, self.copies = attempt, Keeping(), 1
        self._kept = self._skipped = -1
        self._wanted, self._said, self._has_told = {}, Said(), False
        if self._ordered is not None:
            self.go_by(self._ordered)

    def go_by(self, order: GoBy) -> None:
        """Go by what all nodes are told, in that attempt."""
        self._ordered = order
        if order.attempt == self._attempt:
            self.keeping = msgspec.structs.replace(self.keeping, job=order.strides.keeps)
            self.copies = order.strides.copies

    def wants(self, step: int, before: int | None) -> bool:
        """Whether a step is to be kept. `before`: what its rank asked for before, in this attempt."""
        if step not in self._wanted:
            self._wanted[step] = pace.begins_stretch(self.keeping.stride, before, step)
            while len(self._wanted) > _REMEMBERED:
                del self._wanted[next(iter(self._wanted))]
        return self._wanted[step]

    def settled(self, step: int, *, is_kept: bool) -> None:
        """Note whether a step that was wanted had a buffer, on one of the ranks: each step counts once, kept and skipped."""
        if step <= (self._kept if is_kept else self._skipped):
            return
        if is_kept:
            self._kept, self.keeping = step, pace.kept(self.keeping)
        else:
            self._skipped, self.keeping = step, pace.skipped(self.keeping)
        if not is_kept and not self._has_told:
            self._has_told = True
            text = (
                f"step {step} is not kept in memory: the steps before it are still being verified. From now on every "
                f"{self.keeping.stride}th step is, on all nodes, or fewer; training does not wait for it"
            )
            self._tell(KeeperNote(text=text))

    def say(self, copies: int) -> None:
        """Say what this node needs, if that is news. `copies`: the stride that it needs to send."""
        needed = Strides(keeps=self.keeping.own, copies=copies)
        self._said, is_news = pace.to_say(self._said, needed, self._now_s())
        if is_news:
            self._tell(NeedsStrides(attempt=self._attempt, strides=self._said.strides))
