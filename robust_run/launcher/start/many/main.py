"""From a checked command line to an exit code, for one node of several: meets the others, joins, and works until dismissed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from robust_run import tls
from robust_run.launcher.model.job import JobSpec, ManyNodes
from robust_run.launcher.records import evictions
from robust_run.launcher.records.memory_folders import remove_dead_memory, remove_memory_folders
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.records.token import job_name, job_secret, job_token, read_token
from robust_run.launcher.start.guard import held_signals, run_guarded
from robust_run.launcher.start.many.alone import ControllerAlone
from robust_run.launcher.start.many.controller_supervisor import config_of
from robust_run.launcher.start.many.fence import Cell
from robust_run.launcher.start.many.joining import Resumed
from robust_run.launcher.start.many.node_of_many import NodeOfMany

if TYPE_CHECKING:
    from robust_run.launcher.agent.signals import Scheduler


def launch_many(
    spec: JobSpec, env: Mapping[str, str], resumed: Resumed | None = None, scheduler: Scheduler | None = None
) -> int:
    """Be one node of a job and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    many = spec.many
    assert many is not None
    if many.evict_list:
        evictions.load(many.evict_list)  # mistakes in it are said before anything is made
    # Under Slurm all nodes are started anew and derive the job's token from what the new step is called.
    token = _token(many, env, resumed if spec.slurm is None else None)
    if many.tls_cert or many.tls_ca:
        tls.client_context(many.tls_cert, many.tls_key, many.tls_ca)  # mistakes are said before anything is started
    cell = Cell()
    guard = os.getpid()
    with held_signals(spec.end_signals) as mask:
        remove_dead_memory()

        def agent(lifeline: int) -> int:
            if resumed is not None and resumed.agent:
                config = config_of(
                    spec, token, RunDirectory.resume(resumed.run_path), resumed.agent, guard, resume=True
                )
                return ControllerAlone(spec, many, env, mask, lifeline, config).run()
            return NodeOfMany(spec, many, env, token, cell, guard, mask, lifeline, resumed, scheduler).run()

        try:
            return run_guarded(agent, spec.end_signals, mask, fence=cell)
        finally:
            remove_memory_folders(guard)


def _token(many: ManyNodes, env: Mapping[str, str], resumed: Resumed | None) -> str:
    """Return the job's token. A run that is resumed has it in its directory, wherever the secret is by now."""
    if resumed is not None and not many.token_file and os.path.exists(os.path.join(resumed.run_path, "token")):
        return read_token(resumed.run_path)
    return job_token(job_secret(many, env), job_name(many))
