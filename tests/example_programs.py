"""Programs of the examples that tests run as they are, without a launcher."""

from __future__ import annotations

import os
from collections.abc import Callable

import forks

Python = Callable[[tuple[str, ...]], forks.Ended]
"""Runs a program with arguments to its end."""


def forks_environment() -> dict[str, str]:
    """What a worker is told by its launcher, and all else as the warm process has it."""
    return forks.environment(**{name: value for name, value in os.environ.items() if name.startswith("ROBUST_")})
