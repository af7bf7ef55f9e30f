"""A buffer whose memory is taken as it is written, for a part that is written at once, in order and by nobody else.

To reserve it first would write all of it twice, one after the other: that takes as long as to fetch a part over a fast network.
Once it is settled it is as all buffers are: all of its memory is there, and it can be made no shorter.
"""

from __future__ import annotations

import os

from robust_run.ckpt_io.memory import buffers

_STEP_BYTES = 64 << 20
"""What is written is told to the ledger in steps of this."""


class Filling:
    """One buffer. Whoever makes it settles or drops it."""

    def __init__(self, ledger: buffers.Ledger, rank: int, size_bytes: int) -> None:
        """Raises NoRoom: so much memory may not be taken."""
        self.size_bytes = size_bytes
        self._ledger, self._rank = ledger, rank
        self._taken_bytes = 0
        ledger.promise(rank, size_bytes, 1, 1)
        try:
            self.descriptor = buffers.create(rank, size_bytes)
        except OSError as error:
            ledger.give_back(0, size_bytes)
            raise buffers.no_memory(rank, error) from error

    def wrote(self, at_bytes: int) -> None:
        """Note that all before this place has been written."""
        if at_bytes - self._taken_bytes >= _STEP_BYTES:
            self._ledger.took(at_bytes - self._taken_bytes)
            self._taken_bytes = at_bytes

    def settle(self, used_bytes: int) -> None:
        """Take what lies behind the bytes that were written, and seal it. Raises NoRoom."""
        try:
            if used_bytes < self.size_bytes:
                os.posix_fallocate(self.descriptor, used_bytes, self.size_bytes - used_bytes)
            buffers.seal(self.descriptor)
        except OSError as error:
            raise buffers.no_memory(self._rank, error) from error
        self._ledger.took(self.size_bytes - self._taken_bytes)
        self._taken_bytes = self.size_bytes

    def drop(self) -> None:
        """Give all of it back."""
        os.close(self.descriptor)
        self._ledger.give_back(self._taken_bytes, self.size_bytes - self._taken_bytes)
