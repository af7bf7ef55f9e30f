"""From a command line and a step to the job's options: what Slurm knows is filled in, what was typed stays. Pure."""

from __future__ import annotations

import re

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.core.spares import standby_count
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.launcher.start.options.options import Options
from robust_run.slurm.rules.ports import ports_of
from robust_run.slurm.rules.types import SlurmStep

_SRUN = "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --no-kill robust-run"
CANDIDATES = 2
"""Agents in line for the controller, where the run directory is shared."""

PATIENCE_S = 60.0
"""How long too few nodes wait for more, or nodes for a controller, before the job is given up for this time: Slurm gives a job no
node back, so only an agent that is started again can come."""


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the options."""

    options: Options
    use: SlurmUse
    meets: bool = False
    """The nodes meet where this module says; else the command line told them, or there is one."""
    notes: tuple[str, ...] = ()


def fill(options: Options, step: SlurmStep, nodes_of_job: int, *, is_shared: bool) -> Filled:
    """Return the options with what the step says. Raises UserError, one line with the right srun, for steps of another shape.

    `is_shared`: the run directory is on a file system that all nodes have.
    """
    alone = is_alone(options)
    if not alone:
        check_shape(step, nodes_of_job)
    use = SlurmUse(
        job=step.known_as,
        number=step.job,
        step=step.step,
        node_id=step.node_id,
        node_name=step.node_name,
        restart=step.restart,
        end_unix_s=step.end_unix_s,
        warn_before_s=options.warn_before,
        requeue=options.requeue,
        revive=options.revive,
        nodes=len(step.nodes),
    )
    changes: dict[str, object] = {}
    notes: list[str] = []
    if options.on_sigterm != "job":
        changes["on_sigterm"] = "job"
        notes.append(
            f"--on-sigterm {options.on_sigterm} does nothing under Slurm, which says what its SIGTERM is about"
        )
    if "nproc-per-node" not in options.given and step.gpus > 0:
        changes["nproc_per_node"] = str(step.gpus)
    if "rdzv-id" not in options.given and not options.standalone:
        changes["rdzv_id"] = options.run_id or step.name
    meets = False
    if not alone and len(step.nodes) > 1:
        spares = _spares(options.standby, len(step.nodes))
        if "nnodes" not in options.given:
            if spares >= len(step.nodes):
                raise UserError(
                    f"--standby {options.standby}: the step has {len(step.nodes)} nodes, so nobody would be left to work; "
                    f"ask for more with srun -N"
                )
            changes["nnodes"] = str(len(step.nodes) - spares)
            changes["standby"] = str(spares)
            if "wait-for-nodes" not in options.given:
                changes["wait_for_nodes"] = PATIENCE_S
        else:
            _check_nodes(options, len(step.nodes), spares)
        meets = not _has_meeting_point(options)
        if not meets and re.search(r":0+$", options.rdzv_endpoint.strip()):
            raise UserError(
                f"--rdzv-endpoint {options.rdzv_endpoint}: port 0 is another one on each of the step's {len(step.nodes)} nodes, "
                "so each would be a job of its own; leave the option out, or give --standalone"
            )
        if meets:
            changes |= _meeting_point(options, step)
            if "controller-standby" not in options.given and is_shared and options.log_dir != "/dev/null":
                changes["controller_standby"] = min(CANDIDATES, len(step.nodes) - 1)
    given = options.given | {name.replace("_", "-") for name in changes}
    return Filled(
        options=msgspec.structs.replace(options, given=frozenset(given), **changes),
        use=use,
        meets=meets,
        notes=tuple(notes),
    )


def run_name(options: Options, step: SlurmStep) -> str:
    """Return what the run directory is called. Tasks of a step that are jobs of their own have one each."""
    if options.run_id is not None:
        return options.run_id
    return f"{step.name}-task{step.task}" if step.tasks > 1 and is_alone(options) else step.name


def is_alone(options: Options) -> bool:
    """Whether each task is asked to be a job of its own."""
    one = "nnodes" in options.given and re.fullmatch(r"\s*1\s*(:\s*1\s*)?", options.nnodes) is not None
    return options.standalone or (one and options.standby.strip() in ("0", "auto"))


def _has_meeting_point(options: Options) -> bool:
    return bool(options.rdzv_endpoint.strip()) or "master-addr" in options.given


def _meeting_point(options: Options, step: SlurmStep) -> dict[str, object]:
    host = "1" if step.node_id == 0 else "0"
    conf = ",".join(filter(None, (options.rdzv_conf.strip().strip("'\""), f"is_host={host}")))
    at = step.meets_at or step.nodes[0]
    return {
        "rdzv_backend": "c10d",
        "rdzv_endpoint": f"[{at}]:{ports_of(step)[0]}" if ":" in at else f"{at}:{ports_of(step)[0]}",
        "rdzv_conf": conf,
    }


def _check_nodes(options: Options, nodes: int, spares: int) -> None:
    """Raises UserError where the step has fewer nodes than the job needs: Slurm adds none, so the others would wait in vain."""
    least = options.nnodes.partition(":")[0].strip()
    if least.isdecimal() and int(least) > nodes and not _has_meeting_point(options):
        raise UserError(
            f"--nnodes {options.nnodes}: the step has {nodes} nodes; srun -N{int(least) + spares} gives it enough"
        )


def _spares(text: str, nodes: int) -> int:
    """Return how many of the step's nodes stand by; auto: enough for those that work."""
    if text.strip() != "auto":
        return int(text) if text.strip().isdecimal() else 0  # what is no number is refused later, in words
    spares = 0
    while spares < nodes - 1 and spares < standby_count(nodes - spares):
        spares += 1
    return spares


def check_shape(step: SlurmStep, nodes_of_job: int, what: str = "--nproc-per-node N ...") -> None:
    """Raises UserError for several tasks on a node, and for a batch script that forgot srun.

    `what` comes after robust-run in the line that is right.
    """
    nodes = len(step.nodes)
    if not step.step and nodes_of_job > 1:
        raise UserError(
            f"the job has {nodes_of_job} nodes, and without srun robust-run sees one of them; write {_SRUN} ..., "
            "or --standalone for a job on this node alone"
        )
    if step.tasks != nodes:
        is_whole = step.het_size and nodes == sum(step.het_nodes)
        count = f"--het-group=0-{step.het_size - 1}" if is_whole else f"-N{nodes} -n{nodes}"
        raise UserError(
            f"the step has {step.tasks} tasks on {nodes} node{'s' if nodes > 1 else ''}; robust-run starts the workers of a "
            f"node itself and wants one task on each: srun {count} --ntasks-per-node=1 robust-run {what}; "
            "or --standalone, if each task is to be a job of its own"
        )
