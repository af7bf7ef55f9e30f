"""The words of Slurm as the launcher needs them. No behaviour.

A *job* is an allocation of nodes, a *step* is what one `srun` runs on some of them, a *task* is one process of a step: one
`robust-run`. `node_id` counts the nodes of a step from 0.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Reason = Literal["", "time_limit", "preempted", "cancelled", "requeued", "warned"]
"""Why Slurm ends or warns a job; "": not known. warned: the signal that the user asked for with --signal."""


class SlurmStep(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment of a task says. A batch script without `srun` is a step of one task, of number ""."""

    job: str
    """Its number. One task of an array has the array's own, which `scontrol` takes for all of its tasks: see `known_as`."""
    array: str = ""
    """`ARRAYJOB_TASK` of a task of a job array."""
    step: str = ""
    nodes: tuple[str, ...]
    """Slurm's names of the step's nodes; `nodes[node_id]` is this one."""
    node_id: int
    node_name: str
    """Slurm's name of this node, which need not be the host's."""
    meets_at: str = ""
    """Where the first node is reached, if not by its name."""
    task: int = 0
    tasks: int = 1
    """Of the step, on all nodes."""
    restart: int = 0
    """How often the job was requeued and started again."""
    gpus: int = 0
    """Of this step on this node."""
    end_unix_s: float | None = None
    """When the time limit is over, where the environment says it."""
    cpus: int = 0
    """Of this step on this node; 0: not said."""
    het_size: int = 0
    """Components of the job, if it is a heterogeneous one; 0: it is none."""
    het_group: int | None = None
    """Which of them this node is part of."""
    het_nodes: tuple[int, ...] = ()
    """Nodes of each of them, in the job; this step need not have all."""

    @property
    def name(self) -> str:
        """A name for the run: the same after a requeue, and no other job's or step's."""
        return f"slurm-{self.known_as}.{self.step}" if self.step else f"slurm-{self.known_as}"

    @property
    def known_as(self) -> str:
        """What `scontrol` is to call this job, and no other task of its array."""
        return self.array or self.job


class SlurmJobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What `scontrol show job` says of a job."""

    state: str = ""
    """RUNNING, COMPLETING, PENDING, PREEMPTED, ..."""
    end_unix_s: float | None = None
    """When its time is over; None: never, or not known."""
    preempted_unix_s: float | None = None
    """When it was told to make room."""
    restarts: int = 0
    is_batch: bool = False
    may_requeue: bool = True
    batch_host: str = ""
    """The node that runs the batch script."""
    excluded: str = ""
    """Its ExcNodeList, as Slurm writes it."""
    required: str = ""
    """Its ReqNodeList, likewise: what -w named."""


class Warned(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ROBUST_WARNING_FILE: the job is about to be ended."""

    reason: Reason
    deadline: float | None = None
    """Seconds since the epoch from when on workers may be ended; null: not known, be quick."""
    at: float
    """When the warning came, likewise."""
    signal: str = ""
    """The signal it came by, if any."""
    text: str = ""
    """One line for people."""


class SlurmEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How the launcher's part on one node ended, for the decision whether the job is requeued."""

    exit_code: int
    outcome: Literal["", "done", "failed", "stopped"] = ""
    """What the journal says; "": nothing, its end is not on record."""
    is_short: bool = False
    """It gave up because it had too few nodes, or no controller."""
    warned: Reason = ""
    """Why it was warned, if it was."""
    is_orphan: bool = False
    """The node that runs the batch script was lost: Slurm takes the job to run on, with nobody left to end it."""
    evicted: tuple[str, ...] = ()
    """Nodes that the job no longer wants."""
    codes: frozenset[int] = frozenset()
    """Exit codes of the workers of the last attempt."""
    barren: int = 0
    """Starts of the job in a row that got nowhere, this one included."""
