"""What a fetcher says: problems for its status, sentences for people."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

_MOST_PROBLEMS = 20
#: Gets a sentence and, for reads that failed, the reason; "": they wait.
Tell = Callable[[str, str], None]


class FetchWords:
    """What went wrong lately, and who is told of it. Safe for threads."""

    def __init__(self, tell: Tell, note: Callable[[str], None]) -> None:
        """See `Fetcher`."""
        self.tell, self._note = tell, note
        self._problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._lock = threading.Lock()

    @property
    def problems(self) -> tuple[str, ...]:
        """The latest, oldest first."""
        with self._lock:
            return tuple(self._problems)

    def keep(self, problem: str) -> None:
        """Show a problem to who asks, and tell nobody; "": there is none."""
        if problem:
            with self._lock:
                self._problems.append(problem)

    def say(self, sentences: Iterable[str]) -> None:
        """Say what is worth knowing; "": nothing."""
        for sentence in filter(None, sentences):
            self.keep(sentence)
            self._note(sentence)


def words_of(error: BaseException) -> str:
    """Return an exception as one short line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
