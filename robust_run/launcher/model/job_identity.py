"""Identity of a job of several nodes: by which two starts, on whatever node and at whatever time, are known to be of one job.

A job is one rendezvous: where its nodes meet, and what is run there. The name of a run is no part of it: a job may have many
runs, one after the other, and at no time two.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from robust_run.launcher.model.job import JobSpec

_KEY_DIGITS = 32


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes of a job know of it before they have talked to any other."""

    endpoint: str
    """HOST:PORT where its nodes meet, as it was given, in lower case."""
    rdzv_id: str = ""
    """What --rdzv-id calls it; empty: nothing."""
    command: str = ""
    """SHA-256 of the size of the job, its program and the arguments, as they were typed."""

    @property
    def key(self) -> str:
        """Return a name for files: equal for two starts of one job, and for no other job.

        A name that was given (--rdzv-id) counts for more than the command, whose arguments may differ from node to node.
        """
        by = ["rdzv_id", self.rdzv_id] if self.rdzv_id else ["command", self.command]
        text = json.dumps(["robust-run job", 1, self.endpoint, *by])
        return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:_KEY_DIGITS]


def identity_of(spec: JobSpec) -> JobIdentity:
    """Return the identity of a job of several nodes: the same on each of its nodes, before and after it has joined."""
    many = spec.many
    assert many is not None, "a job of one node meets nobody"
    is_named = bool(many.job) and many.job != spec.run_id
    host = many.host.lower().rstrip(".")
    words = [f"{many.fewest}:{many.most}", *(spec.argv[1:] if spec.is_python else spec.argv)]
    digest = hashlib.sha256(json.dumps(words).encode(errors="surrogateescape")).hexdigest()
    return JobIdentity(
        endpoint=f"[{host}]:{many.port}" if ":" in host else f"{host}:{many.port}",
        rdzv_id=many.job if is_named else "",
        command=digest,
    )
