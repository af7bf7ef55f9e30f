"""What a job of several roles does about Slurm: its run directory, its time limit, whether it goes back into the queue.

Its run is called after job and step (`slurm-7.0`), so that the job finds it again after a requeue, on whichever nodes it is then
started: members go on with their checkpoints, queues are as they were. Only the node that leads decides: it knows how the job
ended. Another one speaks up where Slurm says that the first node is down, and with it the batch script.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from robust_run.errors import RobustRunError
from robust_run.launcher.agent.workers.environment import warning_file
from robust_run.launcher.model.job_parts import SlurmUse
from robust_run.launcher.model.world import World
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.rendezvous import check_seconds
from robust_run.orchestrator import journal
from robust_run.orchestrator.machine import ALL_THERE_IS, NodeHas
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.slurm.rules import kill_wait
from robust_run.slurm.rules.scrub import without_binding
from robust_run.slurm.rules.surroundings import OUTER
from robust_run.slurm.rules.types import SlurmEnded, SlurmStep

PATIENCE_S = 60.0
"""So long a job waits where too few nodes are left: Slurm gives it none back. Elsewhere it waits for ever."""
LOST_S, ASK_S = 60.0, 15.0
"""A node that finds no leader for so long asks Slurm whether its node is down, so often."""
DOWN_WITHIN_S = 600.0
"""SlurmdTimeout is 300 s unless a site says otherwise."""
WARNING = "ROBUST_WARNING_FILE"


class UnderSlurm:
    """One node's part of it."""

    def __init__(self, options: Options, step: SlurmStep, env: Mapping[str, str]) -> None:
        self.step = step
        self._asked = env
        self._first_leads = not {"rdzv-endpoint", "nnodes"} & options.given
        self.use = SlurmUse(
            job=step.known_as,
            number=step.job,
            step=step.step,
            node_id=step.node_id,
            node_name=step.node_name,
            restart=step.restart,
            end_unix_s=step.end_unix_s,
            warn_before_s=options.warn_before,
            requeue=options.requeue,
            nodes=len(step.nodes),
        )

    def inner(self, world: World, options: Options) -> dict[str, str]:
        """Return the environment of members: nothing binds them, and they end before Slurm kills what is left."""
        env = {**without_binding(self._asked), OUTER: f"{self.step.job}.{self.step.step}"}
        if "shutdown-timeout" not in options.given and "TORCH_ELASTIC_SHUTDOWN_TIMEOUT" not in env:
            texts = (world.files.text(file) for file in kill_wait.config_files(env))
            limit_s = next((limit for text in texts if (limit := kill_wait.kill_wait_s(text)) is not None), None)
            most_s = kill_wait.workers_time_s(kill_wait.DEFAULT_S if limit_s is None else limit_s)
            env["PET_SHUTDOWN_TIMEOUT"] = str(max(1, int(most_s)))
        return env

    def members_env(self, env: Mapping[str, str], folder: str) -> dict[str, str]:
        """Return the environment of members with the file in which workers are warned. `folder`: the run directory here."""
        return {**env, WARNING: warning_file(folder, self.use)}

    def watch(self, folder: str, say: Callable[[str], None], end: Callable[[], None] | None) -> None:
        """Look after the time limit, within a running loop. `end`: ends the job, on the node that leads it."""
        from robust_run.slurm.limit import TimeLimit

        loop = asyncio.get_running_loop()
        limit = TimeLimit(self.use, folder, self._asked, say, end, loop)
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, limit.signalled, signal.Signals(number).name)

    def is_leader_lost(self) -> bool:
        """Whether Slurm says that the first node, which leads, is down. May block for some seconds."""
        from robust_run.slurm.requeue import is_batch_host_down

        return self._first_leads and is_batch_host_down(self.use, self._asked)

    def follow_up(self, folder: str, exit_code: int) -> None:
        """On the node that led: leave word of how the job ended, and have it requeued where that helps."""
        from robust_run.slurm.requeue import follow_up_told, read_warning
        from robust_run.slurm.verdict import leave_code

        leave_code(exit_code, self._asked)
        try:
            ending = journal.ending(os.path.join(folder, journal.NAME))
        except RobustRunError:
            return
        warned = read_warning(warning_file(folder, self.use))
        ended = ended_as(exit_code, ending, warned.reason if warned is not None else "")
        follow_up_told(self.use, ended, self._asked)

    def follow_up_lost(self) -> None:
        """On another node, which finds no leader: have the job requeued once Slurm says that the first node is down."""
        from robust_run.slurm.requeue import follow_up_told

        if not self._first_leads:
            return
        give_up_at_s = time.monotonic() + DOWN_WITHIN_S
        while not (is_down := self.is_leader_lost()) and time.monotonic() < give_up_at_s:
            time.sleep(ASK_S)
        if is_down:
            follow_up_told(self.use, SlurmEnded(exit_code=1, is_short=True), self._asked)


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a job on one node."""

    has: NodeHas = ALL_THERE_IS
    token: str = ""
    """Random, the same for all leaders that the guard of this start has."""
    slurm: UnderSlurm | None = None
    patience_s: float | None = None
    """So long a member waits that no node is left for, before the job ends; None: for ever."""
    listener: socket.socket | None = None
    """Where all nodes meet, on the one that founds the job: the guard holds it, whichever process of this node leads."""


ANEW = Start()


def patience_s(asked_s: float | None, *, is_under_slurm: bool) -> float | None:
    """Return how long nodes are waited for without which a role cannot go on. `asked_s`: --wait-for-nodes. Raises UserError."""
    if asked_s is None:
        return PATIENCE_S if is_under_slurm else None
    check_seconds("--wait-for-nodes", asked_s)
    return asked_s


def ended_as(exit_code: int, ending: journal.Ending | None, warned: str) -> SlurmEnded:
    """Return the end of a job as Slurm's rules want it. Pure. `warned`: why workers were warned."""
    finish = ending.finish if ending is not None else None
    is_stopped = exit_code in (128 + signal.SIGTERM, 128 + signal.SIGHUP, 128 + signal.SIGINT)
    outcome = "" if finish is None else "done" if finish.code == 0 else "stopped" if is_stopped else "failed"
    return SlurmEnded(
        exit_code=exit_code,
        outcome=outcome,  # type: ignore[arg-type]
        is_short=finish is not None and finish.is_short,
        warned=warned if warned == "time_limit" else "",  # type: ignore[arg-type]
        barren=ending.short if ending is not None else 0,
    )


def hold_signals() -> Iterable[int]:
    """Have SIGTERM wait, and what Slurm sends to every process of a step kill nothing; return the mask before."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    return signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def run_of(options: Options, spec: RolesSpec, step: SlurmStep, log_dir: str) -> tuple[str, bool]:
    """Return the name of the run directory, and whether there is a run in it that this step goes on with. Takes it."""
    from robust_run.slurm.rules.fill import run_name
    from robust_run.slurm.runs import find_in

    name = run_name(options, step)
    if step.restart > 0:
        found = find_in(log_dir, name, step, lambda folder: is_of(folder, spec))
        if found:
            return found, True
    if options.run_id is None:
        name = free_name(log_dir, name)
    return name, False


def is_of(folder: str, spec: RolesSpec) -> bool:
    """Whether a folder has a run of these roles. A file that was changed meanwhile is another job."""
    try:
        return journal.spec_of(folder) == spec
    except RobustRunError:
        return False


def free_name(log_dir: str, name: str) -> str:
    """Return a name that no run has: somebody types several into one interactive step."""
    number = 1
    while os.path.exists(os.path.join(log_dir, name if number == 1 else f"{name}-{number}")):
        number += 1
    return name if number == 1 else f"{name}-{number}"
