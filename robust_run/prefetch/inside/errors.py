"""What can go wrong while a place for workers is made."""

from __future__ import annotations

from robust_run.prefetch.errors import ImageError


class InsideFailed(ImageError):  # noqa: N818 - a state of the world, named as such
    """The image cannot be entered; the message says which part of it failed. Nothing is left mounted."""
