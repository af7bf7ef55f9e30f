"""From the options about an image to `ImageUse`: every path absolute, every bind understood. For jobs that have an image."""

from __future__ import annotations

import os

from robust_run.errors import UserError
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.start.options.options import Options
from robust_run.prefetch.inside.binds import parse
from robust_run.prefetch.launch import default_cache

#: What ROBUST_IMAGE_WRITABLE may say for changes that end with the job.
_IN_MEMORY = ("memory", "1")


def resolve_image(options: Options, world: World) -> ImageUse:
    """Return how the image of a job is used. Raises UserError, one line, for the first thing that cannot be."""
    assert options.image
    if options.prefetch_env:
        raise UserError(
            "--prefetch-env is for jobs without an image: with --image, what starts read is known of the image"
        )
    url = options.image
    if "://" not in url:
        url = absolute(url, world)
        if (kind := world.files.kind(url)) != "file":
            what = "there is no such file" if kind == "missing" else f"it is a {kind}"
            raise UserError(
                f"--image {options.image!r}: {what}; give a .sqsh or .sif file, or robust image build makes one"
            )
    elif url.startswith("docker://"):
        raise UserError(
            f"--image {url}: images of registries are not read as they are; make one with `skopeo copy {url} oci:FOLDER` and "
            "`robust image build FOLDER IMAGE.sqsh`"
        )
    return ImageUse(
        url=url,
        binds=tuple(_bind(text, world) for text in options.bind),
        writable=_writable(options.image_writable, world),
        cache=absolute(options.image_cache or default_cache(world.env.get), world),
    )


def _bind(text: str, world: World) -> str:
    bind = parse(text)
    source = absolute(text.partition(":")[0], world)
    if world.files.kind(source) == "missing":
        raise UserError(f"--bind {text!r}: there is no {source!r} on this machine")
    if ":" in source or ":" in bind.destination:
        raise UserError(f"--bind {text!r}: paths with colons cannot be bound")
    return f"{source}:{bind.destination}{':ro' if bind.read_only else ''}"


def _writable(text: str | None, world: World) -> str | None:
    """Return where changes go. A folder is made when the job starts, if its parent is there."""
    if text is None:
        return None
    if text in _IN_MEMORY:
        return "memory"
    if not text.strip():
        raise UserError("--image-writable=: it is empty; name a folder, or leave out the = to keep changes in memory")
    path = absolute(text, world)
    kind, above = world.files.kind(path), world.files.kind(os.path.dirname(path))
    if kind not in ("missing", "folder") or (kind == "missing" and above != "folder"):
        raise UserError(f"--image-writable={text}: it must be a folder, or a new one in a folder that exists")
    return path
