"""An agent that is started in place of one that died: it is told where its job is, because its step knows nothing of that."""

from __future__ import annotations

import signal
from collections.abc import Mapping

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.world import World
from robust_run.launcher.start.many.main import launch_many
from robust_run.launcher.start.options.options import Options
from robust_run.launcher.start.options.validate import resolve
from robust_run.slurm.rules.invitation import JOIN
from robust_run.slurm.rules.scrub import without_binding
from robust_run.slurm.scheduler import watch

LARGEST = 1 << 17


def start_again(options: Options, world: World, env: Mapping[str, str]) -> int:
    """Join the job of the invitation and return the launcher's exit code. Raises UserError."""
    text = env[JOIN]
    try:
        spec = msgspec.json.decode(text if len(text) <= LARGEST else "", type=JobSpec)
    except msgspec.MsgspecError as error:
        raise UserError(f"{JOIN} is no invitation of robust-run: {error}; unset it") from None
    inner = {name: value for name, value in without_binding(env).items() if name != JOIN}
    if spec.many is None or spec.slurm is None:
        return start_plain(options, world, inner)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    inner["ROBUST_SLURM_STEP"] = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    return launch_many(spec, inner, scheduler=watch)


def start_plain(options: Options, world: World, env: Mapping[str, str]) -> int:
    """Run a job that is not Slurm's."""
    from robust_run.launcher.start.main import launch

    return launch(resolve(options, world), env)
