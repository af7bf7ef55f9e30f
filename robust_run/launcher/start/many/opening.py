"""The workers' place on one node of several, made before it joins: what came of it is part of how it introduces itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from robust_run.clock import Clock
from robust_run.launcher.agent.places.place import OpenedPlace
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.many.joining import Joining


def open_place(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    joining: Joining,
    say: Callable[[str], None],
    lifeline: int,
    token: str,
    run_path: str,
) -> OpenedPlace:
    """Mount the job's image, restore its set-up, and note in `joining` what other nodes are told of it. Raises PlatformError.

    `run_path`: of the run that is continued; empty: it is a new one.
    """
    assert spec.many is not None
    news = None
    if spec.setup is not None:
        from robust_run.launcher.start.many.setup_news import NewsOfJob

        news = NewsOfJob(spec, spec.many, joining, clock, run_path)
    if spec.image is not None:
        from robust_run.launcher.agent.places.image_start import open_image

        folder = spec.log_dir  # the run directory will be in it
        opened = open_image(spec, env, clock, folder, say, lifeline, token=token, news=news)
        if opened.place is not None:
            joining.block_port = opened.place.block_port
    else:
        from robust_run.launcher.agent.places.setup_start import open_setup

        assert news is not None
        opened = open_setup(spec, env, clock, say, lifeline, news)
        assert opened.place is not None
    if opened.place is not None:
        joining.setup = opened.place.snapshot
    return opened
