"""`robust-run --roles FILE`: from a checked command line to an exit code."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

from robust_run.clock import SystemClock
from robust_run.errors import RobustRunError, UserError
from robust_run.launcher.model.world import World
from robust_run.launcher.records.memory_folders import remove_tree
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.run_output import resolve_log_dir, resolve_run_id
from robust_run.orchestrator.guarding.guard import FAULT, Guard
from robust_run.orchestrator.guarding.words import FromGuard, Link, Over
from robust_run.orchestrator.leader import Leader
from robust_run.orchestrator.machine import devices
from robust_run.orchestrator.meeting import several
from robust_run.orchestrator.nodes.follower import Follower
from robust_run.orchestrator.nodes.words import Several
from robust_run.orchestrator.roles_file import load
from robust_run.orchestrator.words import RolesSpec
from robust_run.terminal import plain


def launch_roles(options: Options, world: World, env: Mapping[str, str]) -> int:
    """Run a job of several roles to its end and return its exit code. Raises UserError and PlatformError."""
    spec = load(options.roles or "")
    where = several(options, world, env)
    log_dir, notes = resolve_log_dir(options, world)
    for note in notes:
        _say(note)
    if where is not None and not where.is_leader:
        if log_dir is None:
            raise UserError("--roles over several nodes needs a --log-dir: what members print is kept there")
        return Guard(lambda end: _ended(_follow(where, log_dir, env, Link(end, FromGuard)), end, lambda: None)).run()
    run_directory = RunDirectory.create(log_dir, resolve_run_id(options, None, log_dir, world))
    if run_directory.memory != run_directory.path:
        remove_tree(run_directory.memory)  # of members alone: each has its own
    try:
        code = Guard(lambda end: lead(spec, run_directory, env, end, where)).run()
        if log_dir is not None:
            _draw(run_directory.path)
        return code
    finally:
        run_directory.remove_temporary()


def _draw(run: str) -> None:
    """Leave the page of a job that is over; where that fails, the job has ended as it has."""
    from robust_run.orchestrator.people.pages import write_ended

    said = ""
    try:
        page = write_ended(run)
        said = f"page: {os.path.relpath(page)}" if page else ""
    except Exception as error:
        said = f"the page of the job cannot be drawn: {error}; robust report {run} tries again"
    with suppress(OSError):
        if said:
            _say(said)


def lead(
    spec: RolesSpec,
    run_directory: RunDirectory,
    env: Mapping[str, str],
    end: socket.socket,
    where: Several | None = None,
) -> int:
    """Lead a job, in a process of its own; return its exit code. Another end of the process is a fault: it is tried again."""
    return _ended(
        _lead(spec, run_directory.path, env, Link(end, FromGuard), where), end, run_directory.remove_temporary
    )


def _ended(work: Coroutine[None, None, int], end: socket.socket, clean: Callable[[], None]) -> int:
    """Do the work of a process below the guard, and tell the guard that it is over."""
    link = Link(end, FromGuard)
    try:
        code = asyncio.run(work)
    except RobustRunError as error:
        _say(str(error))
        code = error.exit_code
    except EOFError:
        return FAULT  # the guard was killed before its first word
    try:
        link.send(Over(code=code))
    except OSError:  # it is gone, and cannot clean up any more
        clean()
    return code


async def _follow(where: Several, log_dir: str, env: Mapping[str, str], link: Link) -> int:
    return await Follower(where, log_dir, devices(env), env, SystemClock(), link).run()


async def _lead(spec: RolesSpec, folder: str, env: Mapping[str, str], link: Link, where: Several | None) -> int:
    leader = Leader(spec, folder, env, SystemClock(), link, where)
    finish = await leader.run()
    if finish.sentence:
        leader.say(f"{spec.name} {'is done' if finish.code == 0 else 'ended'}: {finish.sentence}")
    return finish.code


def _say(text: str) -> None:
    print(f"robust-run: {plain(text)}", file=sys.stderr, flush=True)
