"""A command line under Slurm: from options to an exit code, and on to the next start after a requeue."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from robust_run.errors import PlatformError, RobustRunError, UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.records.shared_folders import VARIABLE, is_shared
from robust_run.launcher.start.main import launch
from robust_run.launcher.start.main import resume as resume_one_node
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.validate import resolve
from robust_run.slurm.rules import fill as filling
from robust_run.slurm.rules import kill_wait
from robust_run.slurm.rules.ports import ports_of
from robust_run.slurm.rules.scrub import without_binding
from robust_run.slurm.rules.surroundings import OUTER, nodes_of_job, read
from robust_run.slurm.rules.types import SlurmStep
from robust_run.slurm.scheduler import watch

MOST_RUNS = 100
"""Of one step, without a requeue between them: somebody types into an interactive one."""


def start(options: Options, world: World, env: Mapping[str, str]) -> int:
    """Run the job and return the launcher's exit code. Raises UserError and PlatformError.

    Outside of a step, or where ROBUST_SLURM is off, nothing is different from anywhere else.
    """
    from robust_run.slurm.joining import start_again
    from robust_run.slurm.rules.invitation import JOIN

    if JOIN in env:
        return start_again(options, world, env)
    step = read(env)
    if step is None:
        return launch(resolve(options, world), env)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        try:
            spec = job_of(options, step, world)
        except RobustRunError as error:
            if error_is_here(error) and not filling.is_alone(options):
                tell_others(step, ports_of(step), error)
                tell_the_first(options, step, world, env, error)
            elif step.task != 0 and not error_is_here(error):
                return error.exit_code  # the first task says it for all
            raise
        return run(spec, step, env, mask)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def error_is_here(error: RobustRunError) -> bool:
    """Whether a mistake may be this node's alone, so that each says its own."""
    return "step has" not in str(error) and "job has" not in str(error)


def tell_others(step: SlurmStep, ports: Sequence[int], error: RobustRunError) -> None:
    """Have the other nodes end, which would wait for the controller on this one. Blocks until all have heard, or none comes."""
    if step.node_id == 0 and len(step.nodes) > 1:
        from robust_run.slurm.turning_away import turn_away

        turn_away(ports, len(step.nodes) - 1, f"{step.node_name}, the first node, cannot start the job: {error}")


def tell_the_first(options: Options, step: SlurmStep, world: World, env: Mapping[str, str], error: Exception) -> None:
    """Have the job not wait for this node, which cannot start it: no script here, another interpreter. Never raises."""
    if step.node_id == 0 or len(step.nodes) < 2:
        return
    from robust_run.launcher.records.token import job_name, job_secret, job_token
    from robust_run.launcher.start.options.many_nodes import resolve_many
    from robust_run.slurm.cannot_start import tell

    with suppress(RobustRunError):
        step = msgspec.structs.replace(step, meets_at=address_of(step.nodes[0], env))
        many, _ = resolve_many(filling.fill(options, step, nodes_of_job(env), is_shared=False).options, world)
        if many is not None:
            token = job_token(job_secret(many, env), job_name(many))
            tell(many, ports_of(step), token, step.node_name, str(error))


def job_of(options: Options, step: SlurmStep, world: World) -> JobSpec:
    """Return the job that options and step describe. Raises UserError."""
    folder = absolute(options.log_dir, world) if options.log_dir else world.cwd
    shared = is_shared(folder, world.files.text("/proc/self/mounts"), world.env.get(VARIABLE, ""))
    if len(step.nodes) > 1:
        step = msgspec.structs.replace(step, meets_at=address_of(step.nodes[0], world.env))
    filled = filling.fill(options, step, nodes_of_job(world.env), is_shared=shared)
    name = filling.run_name(options, step)
    is_named = options.run_id is not None and step.restart == 0
    spec = resolve(msgspec.structs.replace(filled.options, run_id=options.run_id if is_named else None), world)
    if "shutdown-timeout" not in options.given:
        # Slurm kills everything KillWait after its SIGTERM: by then workers have ended, and what they leave is cleared.
        texts = (world.files.text(file) for file in kill_wait.config_files(world.env))
        limit_s = next((limit for text in texts if (limit := kill_wait.kill_wait_s(text)) is not None), None)
        most_s = kill_wait.workers_time_s(kill_wait.DEFAULT_S if limit_s is None else limit_s)
        spec = msgspec.structs.replace(spec, shutdown_timeout_s=min(spec.shutdown_timeout_s, most_s))
    many = spec.many
    if many is not None and filled.meets:
        many = msgspec.structs.replace(many, more_ports=ports_of(step)[1:], alone_s=filling.PATIENCE_S)
    return msgspec.structs.replace(spec, run_id=name, many=many, slurm=filled.use, notes=(*spec.notes, *filled.notes))


def address_of(name: str, env: Mapping[str, str]) -> str:
    """Return where a node is reached: its name, or what Slurm knows it by where name servers do not know that."""
    import socket

    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        from robust_run.slurm.scontrol import ask, fields

        answer = ask(("show", "node", "-o", name), env)
        return (fields(answer.text).get("NodeAddr") or name) if answer.ok else name
    return name


def run(spec: JobSpec, step: SlurmStep, env: Mapping[str, str], mask: Iterable[int]) -> int:
    """Run it, or go on with it; and see to it that it is started again where that helps. SIGTERM is held; `mask`: it was not."""
    from robust_run.slurm.requeue import follow_up
    from robust_run.slurm.verdict import leave_word

    leads = spec.many is None or step.node_id == 0
    continued = ""
    if spec.log_dir is not None and step.restart > 0:
        from robust_run.slurm.past import is_done
        from robust_run.slurm.runs import find

        old = find(spec, spec.run_id, step)
        path = os.path.join(spec.log_dir, old)
        if old and is_done(path):
            if leads:
                print(f"robust-run: the run in {path} is done; another --run-id starts a new one", flush=True)
            return 0
        if old:
            spec = msgspec.structs.replace(spec, run_id=old)  # the job's name stays what all nodes of this step call it
            continued = path if leads else ""
    if spec.log_dir is not None and leads and not continued and spec.run_id.startswith(step.name):
        spec = msgspec.structs.replace(spec, run_id=_free_name(spec.log_dir, spec.run_id))
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Slurm sends them to every process of the step, and they kill by default
    inner = {**without_binding(env), OUTER: f"{step.job}.{step.step}"}
    if signal.sigtimedwait({signal.SIGTERM}, 0) is not None:
        exit_code = 128 + signal.SIGTERM  # Slurm ends the job before it has begun; it may have to be requeued
    else:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        exit_code = _start_or_tell(spec, step, inner, continued)
    leave_word(spec, step, env)
    return follow_up(spec, exit_code, env)


def _start_or_tell(spec: JobSpec, step: SlurmStep, env: Mapping[str, str], continued: str) -> int:
    """Be this node's part of the job. Where it ends before all others have found the controller here, these are told."""
    many = spec.many
    if many is None or not many.is_host:
        return _go(spec, env, continued)
    ports = (many.port, *many.more_ports)
    try:
        exit_code = _go(spec, env, continued)
    except RobustRunError as error:
        tell_others(step, ports, error)
        raise
    if 0 < exit_code < 128 and spec.log_dir is not None:
        from robust_run.slurm.past import past_of

        past = past_of(os.path.join(spec.log_dir, spec.run_id), step.restart)
        if past is None or past.joined < len(step.nodes):
            tell_others(step, ports, PlatformError(f"it ended with exit code {exit_code}; its output says why"))
    return exit_code


def _go(spec: JobSpec, env: Mapping[str, str], continued: str) -> int:
    if not continued:
        return launch(spec, env, watch)
    _set_leaders_aside(continued, spec.slurm.restart if spec.slurm is not None else 0)
    if spec.many is None:
        return resume_one_node(spec, env, RunDirectory.join(spec.log_dir, spec.run_id, os.getpid()), watch)
    from robust_run.launcher.start.many.joining import Resumed
    from robust_run.launcher.start.many.main import launch_many

    return launch_many(spec, env, Resumed(run_path=continued), watch)


def _set_leaders_aside(path: str, restart: int) -> None:
    """Elections begin anew: the last leader of the earlier start may have said that the job is over."""
    try:
        os.rename(os.path.join(path, "leader"), os.path.join(path, f"leader-before-{restart}"))
    except OSError:
        return  # there was no election


def _free_name(folder: str, name: str) -> str:
    """Return a name that no run has: somebody types several into one interactive step. Raises UserError."""
    for number in range(1, MOST_RUNS):
        free = f"{name}-{number}" if number > 1 else name
        if not os.path.exists(os.path.join(folder, free, "journal.jsonl")):
            return free
    raise UserError(f"{folder} has {MOST_RUNS} runs of this step already; give --run-id NAME")
