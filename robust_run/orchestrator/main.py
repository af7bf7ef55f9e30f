"""`robust-run --roles FILE`: from a checked command line to an exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError
from robust_run.launcher.model.world import World
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.run_output import resolve_log_dir, resolve_run_id
from robust_run.orchestrator.leader import Leader
from robust_run.orchestrator.roles_file import load


def launch_roles(options: Options, world: World, env: Mapping[str, str]) -> int:
    """Run a job of several roles to its end and return its exit code. Raises UserError and PlatformError."""
    spec = load(options.roles or "")
    log_dir, notes = resolve_log_dir(options, world)
    run_id = resolve_run_id(options, None, log_dir, world)
    run_directory = RunDirectory.create(log_dir, run_id)
    leader = Leader(spec, run_directory.path, env, SystemClock())
    for note in notes:
        leader.say(note)
    try:
        finish = asyncio.run(leader.run())
    except OSError as error:
        raise PlatformError(f"the job of {spec.name} cannot be led: {error}") from error
    finally:
        run_directory.remove_temporary()
    if finish.sentence:
        leader.say(f"{spec.name} {'is done' if finish.code == 0 else 'ended'}: {finish.sentence}")
    sys.stdout.flush()
    return finish.code
