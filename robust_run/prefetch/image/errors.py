"""What can be wrong with what an image is made of."""

from __future__ import annotations

from robust_run.prefetch.errors import ImageError


class ImageRefused(ImageError):  # noqa: N818 - a state of the world, named as such
    """A file is no image we know, is damaged, or asks for what no sound image asks for. Nothing that it says is followed."""


class BuildFailed(ImageError):  # noqa: N818
    """An image could not be made: a tool is missing or failed, or the disk is full. Nothing is left behind."""
