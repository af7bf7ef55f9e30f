"""The set-up of a plan, run in the environment itself: the last rung, and the only one where there can be no snapshot."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.snapshot import ingredients
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.restore import rerun
from robust_run.snapshot.restored import RestoredEnvironment
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules import restore_ladder as ladder


def run_commands(
    plan: BuildPlan, why: str, *, on_output: Callable[[bytes], None] = lambda _: None
) -> RestoredEnvironment:
    """Run the set-up in the environment itself, where there is no snapshot and can be none. Raises `SetupFailed`."""
    choice = ladder.RestoreChoice(rung="commands", refused=(ladder.Refusal("mount", why),))
    folder = plan.setup.roots[0].path
    problem = rerun.why_not(folder)
    if problem:
        raise RestoreRefused(f"{why}; and the set-up cannot be run in the environment: {problem}")
    rerun_in_place(plan, on_output)
    return RestoredEnvironment(None, choice)


def rerun_in_place(plan: BuildPlan, on_output: Callable[[bytes], None]) -> None:
    """Run the commands of a plan unless they were run here for its key. Raises as `rerun.run`."""
    setup = plan.setup
    # What they install is an ingredient of the key: after them it is another one, and nothing is to be run for that.
    rest = (each for each in plan.key.ingredients if not each.name.startswith(ingredients.INSTALLED))
    rerun.run(
        setup.commands,
        key=key.digest_of(rest),
        folder=setup.roots[0].path,
        work_folder=next(iter(setup.work_folders), setup.roots[0].path),
        installed=lambda: key.digest_of(map(ingredients.installed, setup.roots)),
        cwd=setup.cwd,
        environment=setup.environment,
        python=setup.python[0],
        on_output=on_output,
    )
