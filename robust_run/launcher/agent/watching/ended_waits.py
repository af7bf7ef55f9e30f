"""Whether a rank's wait has ended in an error, and it has done nothing since: then it does not go on, as far as is known.

A program may catch such an error and go on: its next call or step shows that. One that dies of it shows neither.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from robust_run.tracer.files.ring import RingHeader


class _Reader(Protocol):
    def has_failed(self, index: int) -> bool: ...


class _Waited(msgspec.Struct, frozen=True):
    """The newest wait of a rank, and how far it was then."""

    index: int | None
    ops: int
    steps: int


class EndedWaits:
    """The newest waits of the ranks of a node."""

    def __init__(self) -> None:
        self._waited: dict[int, _Waited] = {}
        self.failed: set[int] = set()
        """Ranks whose wait ended in an error or with their process, and that have done nothing since."""

    def look(self, rank: int, header: RingHeader, reader: _Reader) -> None:
        """Take in what the ring of a rank that lives says now."""
        if header.waiting_since_s is not None:
            self._waited[rank] = _Waited(header.waiting_index, header.ops, header.steps)
            self.failed.discard(rank)
            return
        waited = self._waited.get(rank)
        if waited is None:
            return
        has_gone_on = (header.ops, header.steps) != (waited.ops, waited.steps)
        if not has_gone_on and waited.index is not None and reader.has_failed(waited.index):
            self.failed.add(rank)
            return
        self.failed.discard(rank)
        del self._waited[rank]

    def ended(self, rank: int, exit_code: int) -> None:
        """A rank has ended: one that waited when it was last looked at, and failed, did not come through."""
        if exit_code != 0 and rank in self._waited:
            self.failed.add(rank)
