"""What this launch knows of its image, and how that is to be mounted here: for images with a set-up, and without."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from robust_run.errors import PlatformError
from robust_run.launcher.agent.places.block_peers import peers_of
from robust_run.launcher.agent.places.image_binds import binds_of, seen, users_binds
from robust_run.launcher.agent.places.own_package import own_binds
from robust_run.launcher.agent.places.read_ahead import launch_of
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.prefetch import belonging, inside
from robust_run.prefetch.launch import Prepared, prepare


def make_folders(image: ImageUse, run_folder: str | None) -> None:
    """Make the folders that are bound into the image. Raises PlatformError."""
    try:
        for folder in (run_folder, image.writable):
            if folder and folder != "memory":
                os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise PlatformError(f"{error.filename}: {error.strerror}: choose another folder") from error


def prepared_image(spec: JobSpec, image: ImageUse, say: Callable[[str], None], token: str) -> Prepared:
    """Return what this launch knows of its image. Raises RobustRunError."""
    peers = peers_of(token) if spec.many is not None and token else None
    prepared = prepare(image.url, image.cache, launch_of(spec, "image"), os.uname().machine, peers=peers)
    for problem in prepared.problems:
        say(f"image {image.url}: {problem}")
    return prepared


def plan_of(
    spec: JobSpec, image: ImageUse, prepared: Prepared, env: Mapping[str, str], run_folder: str | None
) -> inside.InsidePlan:
    """Return the plan of the image. Raises PlatformError, UserError."""
    mount_at = prepared.block_map.mount_at
    is_environment = mount_at is not None
    if mount_at is not None and (reason := belonging.why_not(os.path.realpath(mount_at), seen(spec, env, run_folder))):
        raise PlatformError(
            f"image {image.url}: it is shown at {mount_at}, and there {reason}: put that elsewhere, or build the image with"
            " another --mount-at"
        )
    return inside.InsidePlan(
        image_url=prepared.image_url,
        block_map=prepared.block_map,
        cache_root=prepared.cache_root,
        binds=inside.ordered((*own_binds(image.cache), *users_binds(image)))
        if is_environment
        else binds_of(spec, image, env, run_folder),
        writable=image.writable,
        hot=prepared.plan.hot,
        serve_options=prepared.options,
        served=prepared.plan.served,
    )
