"""A batch job whose script died with its node: nobody tells Slurm that the job is over, so it keeps its nodes to its time limit.

With --no-kill Slurm lets a job live that has lost the node of its batch script, and neither requeues nor ends it. When the
launcher is done, the first of the nodes that are left ends it with `scancel`: Slurm has no other word for it, and shows it as
CANCELLED.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from robust_run.launcher.slurm.hostlist import expand
from robust_run.launcher.slurm.past import Past, past_of
from robust_run.launcher.slurm.requeue import FIRST_WAIT_S, LONGEST_WAIT_S, STEP_WAIT_S
from robust_run.launcher.slurm.scontrol import ANSWER_S, job_facts
from robust_run.launcher.slurm.scrub import for_srun
from robust_run.launcher.slurm.tools import SystemTools
from robust_run.launcher.slurm.types import JobFacts
from robust_run.launcher.types import JobSpec


def end_ghost(spec: JobSpec, exit_code: int, env: Mapping[str, str]) -> int:
    """End the job if its script is gone and nobody has put it back into the queue; return the exit code."""
    use = spec.slurm
    if use is None or spec.many is None or spec.log_dir is None:
        return exit_code
    host = script_host(env)
    past = past_of(os.path.join(spec.log_dir, spec.run_id))
    if not has_lost(past, host) or use.node_name == host:
        return exit_code
    time.sleep(min(LONGEST_WAIT_S, FIRST_WAIT_S + STEP_WAIT_S * use.node_id))  # one of many must do it
    facts, _ = job_facts(use.job, env)
    if facts is not None and is_ghost(facts, use.restart):
        print(
            f"robust-run: the batch script of job {use.job} died with {host}: scancel ends the job, which Slurm then shows as "
            f"CANCELLED; it ended with {exit_code}",
            file=sys.stderr,
            flush=True,
        )
        SystemTools().run(["scancel", use.job], for_srun(env), ANSWER_S)
    return exit_code


def script_host(env: Mapping[str, str]) -> str:
    """Return the node that Slurm runs the batch script on: the first of the job. Pure."""
    nodes = expand(env.get("SLURM_JOB_NODELIST", ""))
    return nodes[0] if nodes else ""


def has_lost(past: Past | None, host: str) -> bool:
    """Whether a node went silent and did not come back, as far as is on record. Pure."""
    return past is not None and bool(host) and host in past.lost


def is_ghost(facts: JobFacts, restart: int) -> bool:
    """Whether Slurm takes a job to be running as it was. Pure."""
    return facts.is_batch and facts.state == "RUNNING" and facts.restarts <= restart
