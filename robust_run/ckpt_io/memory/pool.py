"""The buffers of a node by number: their descriptors, and what of the memory they take."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping

from robust_run.ckpt_io.memory.buffers import Ledger
from robust_run.ckpt_io.memory.generations import HeldBuffer


class Pool:
    """All of them, of this node's ranks and of others'. Of the keeper's thread; the ledger is for all threads."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._descriptors: dict[int, int] = {}
        self._next_id = 1
        self._lent: Counter[int] = Counter()

    def take_in(self, made: list[int]) -> range:
        """Give numbers to new buffers, whose memory the ledger knows."""
        ids = range(self._next_id, self._next_id + len(made))
        self._next_id += len(made)
        self._descriptors.update(zip(ids, made, strict=True))
        return ids

    @property
    def descriptors(self) -> Mapping[int, int]:
        """Of all buffers, by number."""
        return self._descriptors

    def descriptor(self, buffer: int) -> int:
        """Return a buffer's own: it is closed with it."""
        return self._descriptors[buffer]

    def free(self, buffers: Iterable[HeldBuffer]) -> None:
        """Free them. Their memory is free once nobody has them mapped either."""
        for each in buffers:
            os.close(self._descriptors.pop(each.id))
            self.ledger.give_back(each.size_bytes)

    def lend(self, buffer: int) -> int:
        """Return another descriptor of a buffer, for a thread that reads it: it is busy until it is returned. Raises OSError."""
        descriptor = os.dup(self._descriptors[buffer])
        self._lent[buffer] += 1
        return descriptor

    def returned(self, buffer: int) -> None:
        """Note that a thread is done with one that was lent; it has closed the descriptor."""
        self._lent[buffer] -= 1
        if self._lent[buffer] <= 0:
            del self._lent[buffer]

    @property
    def lent(self) -> set[int]:
        """Buffers that some thread reads."""
        return set(self._lent)
