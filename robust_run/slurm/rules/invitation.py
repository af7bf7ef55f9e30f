"""What an agent is told that is started in place of one that died: its step knows nothing of the job. Pure."""

from __future__ import annotations

import msgspec

from robust_run.launcher.model.job import JobSpec

JOIN = "ROBUST_SLURM_JOIN"
"""The job to join, as JSON of a JobSpec."""


def invitation(spec: JobSpec, node_id: int, node_name: str) -> str:
    """Return what an agent on another node needs to become a part of this job."""
    assert spec.many is not None and spec.slurm is not None
    many = msgspec.structs.replace(spec.many, is_host=False, local_addr=None, node_rank=None)
    use = msgspec.structs.replace(spec.slurm, node_id=node_id, node_name=node_name)
    return msgspec.json.encode(msgspec.structs.replace(spec, many=many, slurm=use, notes=())).decode()
