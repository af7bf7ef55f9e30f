"""Has the image of a job mounted on this node, before anything else of the job is there; a signal ends that."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from robust_run.clock import Clock
from robust_run.errors import InternalError, PlatformError
from robust_run.launcher.agent_signals import ENDING
from robust_run.launcher.image_binds import binds_of, users_binds
from robust_run.launcher.image_place import ImagePlace
from robust_run.launcher.read_ahead import Ahead, MountedAhead, launch_of
from robust_run.launcher.types import ImageUse, JobSpec
from robust_run.prefetch import inside
from robust_run.prefetch.launch import Prepared, prepare
from robust_run.prefetch.mount.facts import mounted_image
from robust_run.prefetch.peers.types import PeerOptions, token_of
from robust_run.signals import signal_name

#: How often signals that were sent to this process alone are looked for while the image is made.
LOOK_S = 0.2
#: How long nothing is fetched ahead while it is not known from which other nodes it could come.
MEMBERS_WAIT_S = 10.0


class Interrupted(PlatformError):  # noqa: N818 - a signal, no error
    """A signal came before the image was there. Its exit code is that of a job that the signal ended."""

    def __init__(self, number: int) -> None:
        super().__init__(f"{signal_name(number)} came before the image was there; nothing was started")
        self.exit_code = 128 + number


class Opened(NamedTuple):
    """What became of an image on a node."""

    place: ImagePlace | None
    """Where workers run; None: they are in the image already, because the whole job is."""
    ahead: Ahead | None
    """What reads it ahead then."""


def open_image(
    spec: JobSpec,
    env: Mapping[str, str],
    clock: Clock,
    run_folder: str | None,
    say: Callable[[str], None],
    lifeline: int,
    token: str = "",
) -> Opened:
    """Make the image of a job ready on this node. Raises PlatformError, UserError, and `Interrupted` by a signal.

    Ending signals must be held (see `guard.hold_signals`); `lifeline`: see `guard.run_guarded`. `token`: the secret of a job of
    several nodes, which then give each other blocks.
    """
    assert spec.image is not None
    image = spec.image
    if mounted_image(env, image.url) is not None:
        return Opened(None, MountedAhead(spec, image, clock, say))
    place = _unless_interrupted(lambda: _make(spec, image, env, clock, run_folder, say, token), spec, lifeline)
    return Opened(place, None)


def _make(
    spec: JobSpec,
    image: ImageUse,
    env: Mapping[str, str],
    clock: Clock,
    run_folder: str | None,
    say: Callable[[str], None],
    token: str,
) -> ImagePlace:
    try:
        for folder in (run_folder, image.writable):
            if folder and folder != "memory":
                os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise PlatformError(f"{error.filename}: {error.strerror}: choose another folder") from error
    launch = launch_of(spec, "image")
    peers = _peers(token) if spec.many is not None else None
    prepared = prepare(image.url, image.cache, launch, os.uname().machine, peers=peers)
    for problem in prepared.problems:
        say(f"image {image.url}: {problem}")
    mount_at = prepared.block_map.mount_at
    if mount_at is not None:
        # A folder that is not there would have the one above it replaced by a likeness, and what workers make in that is lost.
        # Where we may not make it, workers may not make anything beside it either.
        with suppress(OSError):
            os.makedirs(mount_at, exist_ok=True)
    plan = _plan(spec, image, prepared, env, run_folder)
    return ImagePlace(spec, image, prepared, clock, say, lambda hear: inside.start(plan, on_problem=hear))


def _peers(token: str) -> PeerOptions | None:
    """Return how blocks are shared; who they are shared with is known when the first attempt begins."""
    return PeerOptions(token=token_of(token), members_wait_s=MEMBERS_WAIT_S) if token else None


def _plan(
    spec: JobSpec, image: ImageUse, prepared: Prepared, env: Mapping[str, str], run_folder: str | None
) -> inside.InsidePlan:
    is_environment = prepared.block_map.mount_at is not None
    return inside.InsidePlan(
        image_url=prepared.image_url,
        block_map=prepared.block_map,
        cache_root=prepared.cache_root,
        binds=users_binds(image) if is_environment else binds_of(spec, image, env, run_folder),
        writable=image.writable,
        hot=prepared.plan.hot,
        serve_options=prepared.options,
        served=prepared.plan.served,
    )


def _unless_interrupted(make: Callable[[], ImagePlace], spec: JobSpec, lifeline: int) -> ImagePlace:
    """Call `make` in a thread, and wait for it or for a signal. What a signal leaves half made ends with this process."""
    made: list[ImagePlace] = []
    failed: list[BaseException] = []
    over, tell = os.pipe()

    def within() -> None:
        try:
            made.append(make())
        except BaseException as error:
            failed.append(error)
        finally:
            os.write(tell, b".")

    thread = threading.Thread(target=within, daemon=True)
    thread.start()
    _wait(over, lifeline, {*ENDING, *map(signal.Signals, spec.end_signals)})
    thread.join()
    os.close(over)
    os.close(tell)
    if failed:
        raise failed[0]
    if not made:
        raise InternalError("an image was neither made nor refused")
    return made[0]


def _wait(over: int, lifeline: int, ending: set[signal.Signals]) -> None:
    """Wait until a byte can be read. Raises `Interrupted` when a signal that ends jobs comes, or the guard is gone."""
    watched = [over, lifeline]
    while True:
        readable, _, _ = select.select(watched, [], [], LOOK_S)
        if over in readable:
            return
        if lifeline in readable:
            received = os.read(lifeline, 64)
            if not received:
                raise Interrupted(signal.SIGKILL)
            if numbers := [number for number in received if number in ending]:
                raise Interrupted(numbers[0])
        if pending := signal.sigpending() & ending:
            if signal.SIGHUP in pending and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
                pending.discard(signal.SIGHUP)
            if pending:
                raise Interrupted(min(pending))
