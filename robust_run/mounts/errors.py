"""What can be wrong with a mount."""

from __future__ import annotations

from robust_run.errors import PlatformError


class MountRefused(PlatformError):  # noqa: N818 - a state of the world, named as such
    """The kernel, or a program that mounts, does not let us: there may be another way."""
