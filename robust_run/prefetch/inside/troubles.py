"""What goes wrong with a place for programs, while its holder makes it and later: who is told, and what ends the making."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from robust_run.mounts.holding import Problem, Tell
from robust_run.prefetch.errors import InsideFailed

if TYPE_CHECKING:
    from robust_run.prefetch import server

#: How long it may take until it is heard why reads failed, once the mount has failed.
HEARD_S = 3.0


class Troubles:
    """What goes wrong with the place. While it is being made, reads that fail end the making, and are why it failed."""

    def __init__(self, tell: Tell) -> None:
        """`tell`: hears of each, from any thread."""
        self._tell = tell
        self._lock = threading.Lock()
        self._is_made = False
        self._serving: list[server.ServerHandle] = []
        self._heard = threading.Event()
        self.lost = ""
        """Why reads failed while it was being made."""

    def serving(self, handle: server.ServerHandle) -> None:
        """Have this server stopped, with those before, when reads fail before the place is made."""
        self._serving.append(handle)

    def happened(self, sentence: str) -> None:
        """The block server was replaced or given up."""
        is_lost = any(each.state == "failed" for each in self._serving)
        self._tell(Problem(sentence, is_lost=is_lost))

    def noted(self, sentence: str) -> None:
        """Something is worth knowing."""
        self._tell(Problem(sentence, is_note=True))

    def reader_ended(self, wait: Callable[[], int]) -> None:
        """Wait for the end of the process that shows the image, which cannot be replaced."""
        code = wait()
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        self._tell(Problem(f"squashfuse {how}: what reads the image from now on gets errors", is_lost=True))

    def reads_failed(self, sentence: str) -> None:
        """Reads failed; from any thread. A mount asks for block after block, and waits as long for each: it is not left to."""
        with self._lock:
            ends_the_making = not self._is_made and not self.lost
            if not self._is_made:
                self.lost = self.lost or sentence
                self._heard.set()
        if ends_the_making and self._serving:
            for each in self._serving:
                each.stop()
        elif not self.lost:
            self._tell(Problem(sentence, has_lost_reads=True))

    def why(self) -> str:
        """Return why the making failed, as far as reads are the reason; else "".

        The mount may fail before it is heard that a read did: who asks waits for that, a moment.
        """
        if self._serving:
            self._heard.wait(HEARD_S)
        return self.lost

    def made(self) -> None:
        """Note that the place is made. Raises `InsideFailed` if it was given up a moment ago."""
        with self._lock:
            self._is_made = True
            if self.lost:
                raise InsideFailed(self.lost)
