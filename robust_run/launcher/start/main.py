"""From a checked command line to an exit code, of a job of one node: with a guard above it, or forked from a warm process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.clock import Clock, SystemClock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.launcher.agent.workers.process_tree import become_subreaper
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.memory_folders import remove_dead_memory
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import Console
from robust_run.launcher.start.guard import guard_is_gone, held_signals, run_guarded
from robust_run.launcher.start.one_node_job import OneNodeJob
from robust_run.launcher.start.warm import client as warm_process

if TYPE_CHECKING:
    from robust_run.launcher.agent.checkpoint.early import EarlyCheckpoint
    from robust_run.launcher.agent.memory.folder import MemoryDir
    from robust_run.launcher.agent.signals import Scheduler
    from robust_run.launcher.agent.warm.warm_handoff import WarmHandoff


def launch(spec: JobSpec, env: Mapping[str, str], scheduler: Scheduler | None = None) -> int:
    """Run a job to its end and return the launcher's exit code. Raises UserError and PlatformError before anything runs."""
    if spec.many is not None:
        from robust_run.launcher.start.many.main import launch_many

        return launch_many(spec, env, scheduler=scheduler)
    with held_signals(spec.end_signals) as mask:
        remove_dead_memory()
        run_directory = RunDirectory.create(spec.log_dir, spec.run_id)
        try:
            # What a scheduler signals, counts and ends are the processes of a step: there, the agent is one of them.
            offer = warm_process.look(spec, env) if spec.slurm is None else warm_process.NOTHING
            return run_guarded(
                lambda lifeline: run_agent(
                    _with_note(spec, offer.note), env, run_directory, lifeline, mask, scheduler=scheduler
                ),
                spec.end_signals,
                mask,
                elsewhere=lambda lifeline: offer.hand_over(spec, env, run_directory, lifeline, mask),
            )
        finally:
            _take_away(spec, run_directory)


def resume(
    spec: JobSpec, env: Mapping[str, str], run_directory: RunDirectory, scheduler: Scheduler | None = None
) -> int:
    """Go on with a one-node job from its journal, with the attempt after the last. Raises PlatformError."""
    with held_signals(spec.end_signals) as mask:
        try:
            return run_guarded(
                lambda lifeline: run_agent(spec, env, run_directory, lifeline, mask, resumed=True, scheduler=scheduler),
                spec.end_signals,
                mask,
            )
        finally:
            _take_away(spec, run_directory)


def _take_away(spec: JobSpec, run_directory: RunDirectory) -> None:
    """Take away what lay in memory: also of an agent that was killed, and of its process that had the checkpoints."""
    run_directory.remove_temporary()
    if spec.ckpt_memory_dir is not None:
        from robust_run.launcher.agent.memory.folder import take_away

        take_away(spec.ckpt_memory_dir)


def _with_note(spec: JobSpec, note: str) -> JobSpec:
    return msgspec.structs.replace(spec, notes=(*spec.notes, note)) if note else spec


def run_agent(
    spec: JobSpec,
    env: Mapping[str, str],
    run_directory: RunDirectory,
    lifeline: int,
    mask: set[int],
    given: WarmHandoff | None = None,
    *,
    resumed: bool = False,
    scheduler: Scheduler | None = None,
) -> int:
    """Be agent and controller of a one-node job, in a process of its own, and return the exit code.

    `mask` is the signal mask for workers; the signals the agent handles are held until it can. `given`: it was forked from a
    warm process. `resumed`: the run directory holds the journal of a controller that is gone. `scheduler`: what Slurm adds, for
    a job under Slurm.
    """
    clock = SystemClock()
    started_at_s = clock.monotonic_s()
    console = Console(spec, clock)
    memory_dir: MemoryDir | None = None
    try:
        become_subreaper()
        if spec.ckpt_memory_dir is not None:  # before there are namespaces, which shall see it
            from robust_run.launcher.agent.memory.folder import opened_for

            memory_dir = opened_for(spec, env, run_directory, console.say)
        opened = None
        early = None
        if spec.image is not None or spec.setup is not None:
            from robust_run.launcher.start.place_opening import open_place

            early = _early(spec, env, clock, run_directory, mask, console)

            opened = open_place(spec, env, clock, run_directory, console, lifeline)
        try:
            job = OneNodeJob(
                spec, env, clock, run_directory, console, mask, given, opened, memory_dir, early=early, resumed=resumed
            )
        except PlatformError:  # what its workers need is not to be had
            run_directory.remove_unused()
            raise
        job.begin()
        job.greet()
        job.run(lifeline, scheduler)
        return job.end(started_at_s, lifeline)
    except RobustRunError as error:
        console.say(str(error))
        return error.exit_code
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        os.write(2, f"robust-run: {error}; is the process limit (ulimit -u) reached?\n".encode())
        return 1
    finally:
        if memory_dir is not None:
            memory_dir.close()
        console.close()
        if guard_is_gone(lifeline):  # it was killed, so nobody else will
            run_directory.remove_temporary()


def _early(
    spec: JobSpec, env: Mapping[str, str], clock: Clock, run_directory: RunDirectory, mask: set[int], console: Console
) -> EarlyCheckpoint | None:
    """Begin to fetch what the job will most likely start from, beside its image or set-up; None: there is no such thing."""
    if spec.ckpt_dir is None or "://" not in spec.ckpt_dir:
        return None
    from robust_run.launcher.agent.checkpoint import early as checkpoint_early

    if not checkpoint_early.is_wanted(spec):
        return None
    return checkpoint_early.begin(spec, env, clock, run_directory, mask, console.say)
