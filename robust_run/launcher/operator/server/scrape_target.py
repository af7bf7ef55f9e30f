"""The file that leads Prometheus to a job's metrics: one target in the form of `file_sd`, in a folder for the jobs of many runs.

A job has it for as long as its controller serves; another controller that takes over replaces it. What a power loss leaves
is a target that does not answer, as Prometheus then says.
"""

from __future__ import annotations

import os
from contextlib import suppress

import msgspec

from robust_run.atomic_file import write_file

_LARGEST_BYTES = 1 << 16


class ScrapeTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run's metrics are."""

    folder: str
    """For files of this kind, absolute."""
    run_id: str
    url: str
    """Like `http://gpu-1:8080`."""
    host: str
    """Host name of the controller's machine."""

    @property
    def path(self) -> str:
        """Path of the file. Prometheus looks at names that end in .json."""
        return os.path.join(self.folder, f"robust-run-{self.run_id}.json")

    def content(self) -> bytes:
        """Return what Prometheus reads. No secret is in it."""
        scheme, _, address = self.url.partition("://")
        labels = {"__scheme__": scheme, "run_id": self.run_id, "controller": self.host}
        return msgspec.json.encode([{"targets": [address], "labels": labels}]) + b"\n"


def write(target: ScrapeTarget) -> None:
    """Write the file in one step, for all to read; its folder is made if need be. Raises OSError."""
    os.makedirs(target.folder, exist_ok=True)
    # A name that Prometheus does not look at, nor a controller on another host that writes the same file, uses.
    draft = os.path.join(target.folder, f".{target.run_id}.{os.urandom(8).hex()}.tmp")
    write_file(target.path, target.content(), draft=draft, mode=0o644)


def remove(target: ScrapeTarget) -> None:
    """Remove the file unless another controller has written its own by now. Never raises."""
    with suppress(OSError):
        with open(target.path, "rb") as file:
            is_own = file.read(_LARGEST_BYTES) == target.content()
        if is_own:
            os.unlink(target.path)
