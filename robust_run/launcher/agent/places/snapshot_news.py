"""Source of news of a job's snapshot, for a node that is not in the job yet."""

from __future__ import annotations

from typing import Protocol

from robust_run.snapshot.rules import manifest as manifests


class News(Protocol):
    """What is known of the job's snapshot before this node is in the job."""

    @property
    def is_first(self) -> bool:
        """Whether this node is the one that is to run the commands; others leave it to that one for a while."""
        ...

    def ask(self) -> bytes | None:
        """Return the manifest that the job has; empty: the commands were run on every node. None: it is not known yet."""
        ...


class Recorded:
    """Of a job of one node: what its run directory says, if it is resumed."""

    is_first = True

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self) -> bytes | None:
        """See `News`."""
        return read_snapshot(self._path)


def read_snapshot(path: str) -> bytes | None:
    """Return the snapshot that a run directory names, None if it has none."""
    try:
        with open(path, "rb") as file:
            return file.read(manifests.LARGEST_BYTES + 1)
    except OSError:
        return None
