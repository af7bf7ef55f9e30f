"""Check results of this fleet in the past, read and kept by the controller. Without them, checks have less to compare with."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from robust_run.errors import RobustRunError
from robust_run.health.checks.history import History, learn
from robust_run.health.checks.types import Result
from robust_run.health.diagnostics import records


class FleetHistory:
    """The file at a path; none where that is empty."""

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self) -> History:
        """Return it; an empty one where it cannot be read."""
        try:
            return records.load(self._path) if self._path else History()
        except RobustRunError:
            return History()

    def learn(self, results: Sequence[Result], passed: Sequence[str]) -> None:
        """Keep what nodes measured that passed, beside other work: disks are slow, and others may hold the file."""
        if not self._path:
            return

        def keep() -> None:
            try:
                records.change(self._path, lambda found: learn(found, results, passed))
            except RobustRunError:
                return

        threading.Thread(target=keep, name="history", daemon=True).start()
