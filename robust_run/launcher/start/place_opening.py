"""Opening of the place that the workers of a one-node job run in: an image, or an environment with a set-up done."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.agent.places.opening import timed
from robust_run.launcher.agent.places.place import OpenedPlace
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.launcher.start.console import Console


def open_place(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    run_directory: RunDirectory,
    console: Console,
    lifeline: int,
) -> OpenedPlace:
    """Make the place of a job that has an image or a set-up. Raises RobustRunError."""
    try:
        news = None
        if spec.setup is not None:
            from robust_run.launcher.agent.places.snapshot_news import Recorded

            news = Recorded(run_directory.snapshot)
        if spec.image is not None:
            from robust_run.launcher.agent.places.image_start import open_image

            make = partial(open_image, spec, env, clock, run_directory.path, console.say, lifeline, news=news)
        else:
            from robust_run.launcher.agent.places.setup_start import open_setup

            assert news is not None
            make = partial(open_setup, spec, env, clock, console.say, lifeline, news)
        opened, opening = timed(clock, make)
        return opened._replace(opening=opening)
    except RobustRunError:
        run_directory.remove_unused()
        raise
