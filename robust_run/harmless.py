"""Fault isolation for what a job can do without: a mistake of ours in it must not end training."""

from __future__ import annotations

from collections.abc import Callable


class Harmless:
    """Runs calls until one fails by a fault of ours; that is said once, and nothing is run any more."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        """`what` is off from then on, as people are told: `looking at ranks`."""
        self._what = what
        self._say = say
        self.has_failed = False

    def run(self, call: Callable[[], None]) -> bool:
        """Call; return whether that went well."""
        if self.has_failed:
            return False
        try:
            call()
        except Exception as error:
            self.failed(error)
        return not self.has_failed

    def failed(self, error: Exception) -> None:
        """Take note of a fault, and say it if it is the first."""
        if self.has_failed:
            return
        self.has_failed = True
        from traceback import extract_tb

        frames = extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        self._say(
            f"{self._what} is off for the rest of this job, by a fault of robust-run{where}: {text}; please report it"
        )
