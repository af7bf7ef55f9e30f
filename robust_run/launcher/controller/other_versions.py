"""Nodes that run another robust-run than their controller: they are named, as what they do not understand shows much later."""

from __future__ import annotations

from robust_run.version import __version__

#: Lines in the life of a controller: where one node is of another version, many may be.
MOST_LINES = 4


class OtherVersions:
    """Names each node once."""

    def __init__(self, own: str = __version__) -> None:
        self._own = own
        self._named: set[tuple[str, str]] = set()

    def note(self, name: str, version: str) -> str:
        """Return what to say of a node that joins; empty: nothing."""
        if version in ("", self._own) or (name, version) in self._named or len(self._named) >= MOST_LINES:
            return ""
        self._named.add((name, version))
        more = "; of further nodes it is not said" if len(self._named) == MOST_LINES else ""
        return f"{name} runs robust-run {version}, its controller {self._own}: install the same on all nodes{more}"
