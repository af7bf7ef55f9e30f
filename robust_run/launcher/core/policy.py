"""The numbers that decide, taken from a job as asked for."""

from __future__ import annotations

import msgspec

from robust_run.launcher.core.state import Policy
from robust_run.launcher.model.job import JobSpec


def policy_of(spec: JobSpec) -> Policy:
    """Return the core's policy for a job."""
    base = Policy(
        job=spec.run_id,
        max_restarts=spec.max_restarts,
        progress_after_s=spec.progress_after_s,
        restart_grace_s=spec.restart_grace_s,
        shutdown_timeout_s=spec.shutdown_timeout_s,
        on_hang=spec.on_hang,
        on_slow=spec.on_slow,
        hang_after_s=spec.hang_after_s,
        health_rules=spec.health_rules,
        diagnose=spec.diagnose,
        diagnose_checks=spec.diagnose_checks,
        no_replay=spec.no_replay,
        replay_unit=spec.replay_unit,
        max_evict_share=spec.max_evict_share,
    )
    many = spec.many
    if many is None:
        return base
    return msgspec.structs.replace(
        base,
        fewest=many.fewest,
        most=many.most,
        join_timeout_s=many.join_timeout_s,
        last_call_s=many.last_call_s,
        wait_for_nodes_s=many.wait_for_nodes_s,
        many=True,
    )
