"""A fourth buffer for each rank of a node, as long as a copy takes longer than a step. In the keeper's thread.

With three, saving goes on in the two that are not sent: by the time a copy has arrived, its original has been written over. If
the node with the copy is lost then, those that sent to it have nothing of what others have left (bench/memory_losses.py). So
what was sent last, and what is being sent, stay until the next one is (`Sending.pinned`), and saving takes turns in two others.

It is memory of the same size again, and worth less than the first three: where there is no room for it nothing is said, and what
was sent may be written over. It is not given back before the attempt ends, for its rank has it mapped. A copy that is as fast as
steps needs none: its original is one of the two newest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from robust_run.ckpt_io.memory import buffers
from robust_run.ckpt_io.memory.budget import rounded
from robust_run.ckpt_io.memory.copies.sending import Sending
from robust_run.ckpt_io.memory.flushing.running import Runs
from robust_run.ckpt_io.memory.generations import Holdings, large
from robust_run.ckpt_io.memory.types import BUFFERS


class FourthBuffers:
    """One node's."""

    def __init__(self, ledger: buffers.Ledger, run: Runs, take_in: Callable[[list[int], int, int], None]) -> None:
        """`take_in`: descriptors, of a rank, of so many bytes."""
        self._ledger, self._run, self._take_in = ledger, run, take_in
        self._asked: dict[int, int] = {}
        """By rank: for how many bytes."""
        self._attempt = -1
        self.ranks: set[int] = set()
        """Those that have one."""

    def begin_attempt(self, attempt: int) -> None:
        """Begin without: what there is is freed when it is of no use."""
        self._attempt, self._asked, self.ranks = attempt, {}, set()

    def forget(self, rank: int) -> None:
        """A rank needs larger buffers than before."""
        self._asked.pop(rank, None)
        self.ranks.discard(rank)

    def of(self, rank: int, holdings: Holdings, needed_bytes: Mapping[int, int]) -> set[int]:
        """Return all four buffers of a rank; none, where it has three."""
        if rank not in self.ranks:
            return set()
        return set(large(holdings, rank, needed_bytes.get(rank, 0), BUFFERS + 1))

    def look(self, needed_bytes: Mapping[int, int], sending: Sending) -> None:
        """Reserve what is missing, if copies are not sent of every step. `needed_bytes`: by rank, once it has three."""
        if not sending.has_peer or sending.pace.stride <= 1:
            return
        for rank, size_bytes in needed_bytes.items():
            if rank not in self._asked:
                self._asked[rank] = rounded(size_bytes)
                self._reserve(rank, rounded(size_bytes))

    def _reserve(self, rank: int, size_bytes: int) -> None:
        attempt = self._attempt

        def job() -> list[int]:
            return buffers.reserve(self._ledger, rank, size_bytes, 1, 1)

        def then(made: list[int] | Exception) -> None:
            if isinstance(made, Exception):
                return
            if attempt == self._attempt and self._asked.get(rank) == size_bytes:
                self.ranks.add(rank)
            self._take_in(made, rank, size_bytes)  # one that nobody wants any more is freed as what is too many is

        self._run(job, then, is_long=True)
