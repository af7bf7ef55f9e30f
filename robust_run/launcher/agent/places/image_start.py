"""Mounts the image of a job on this node, before anything else of the job is there; a signal ends that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from robust_run.clock import Clock
from robust_run.launcher.agent.interruptible import unless_interrupted
from robust_run.launcher.agent.places.image_place import ImagePlace, MadeImage
from robust_run.launcher.agent.places.image_plan import make_folders, plan_of, prepared_image
from robust_run.launcher.agent.places.made_place import Hears
from robust_run.launcher.agent.places.place import OpenedPlace
from robust_run.launcher.agent.places.read_ahead import MountedAhead
from robust_run.launcher.agent.places.snapshot_news import News
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.prefetch import inside
from robust_run.prefetch.mount.warm import mounted_image
from robust_run.store import turn_table


def open_image(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    run_folder: str | None,
    say: Callable[[str], None],
    lifeline: int,
    token: str = "",
    news: News | None = None,
) -> OpenedPlace:
    """Make the image of a job ready on this node, with its set-up if it has one.

    Raises PlatformError, UserError, and `Interrupted` by a signal.

    Ending signals must be held (see `guard.hold_signals`); `lifeline`: see `guard.run_guarded`. `token`: the secret of a job of
    several nodes, which then give each other blocks. `news`: of the set-up, for a job that has one.
    """
    assert spec.image is not None
    image = spec.image
    if mounted_image(env, image.url) is not None:
        ahead = MountedAhead(spec, image, clock, say)
        if spec.setup is None or news is None:
            return OpenedPlace(None, ahead)
        from robust_run.launcher.agent.places.setup_start import open_setup

        return open_setup(spec, env, clock, say, lifeline, news)._replace(ahead=ahead)
    if spec.setup is not None and news is not None:
        from robust_run.launcher.agent.places.image_setup import ImageSetupOpening

        opening = ImageSetupOpening(spec, env, clock, run_folder, say, news, token)
        return OpenedPlace(unless_interrupted(opening.open, spec, lifeline, "the set-up", opening.give_up), None)
    place = unless_interrupted(
        lambda: _make(spec, image, env, clock, run_folder, say, token), spec, lifeline, "the image"
    )
    return OpenedPlace(place, None)


def _make(
    spec: JobSpec,
    image: ImageUse,
    env: Mapping[str, str],
    clock: Clock,
    run_folder: str | None,
    say: Callable[[str], None],
    token: str,
) -> ImagePlace:
    make_folders(image, run_folder)
    turn_table.begin()
    with ExitStack() as unused:
        begun = [inside.begin()]  # its Python starts while the block map and the hot list are on their way
        unused.callback(_close, begun)
        prepared = prepared_image(spec, image, say, token)
        plan = plan_of(spec, image, prepared, env, run_folder)

        def start(hears: Hears) -> MadeImage:
            waiting = begun.pop() if begun else None
            return MadeImage(inside.start(plan, on_problem=hears.trouble, on_note=hears.note, begun=waiting), prepared)

        return ImagePlace(spec, image, clock, say, start)


def _close(unused: list[inside.Begun]) -> None:
    for each in unused:
        each.close()
