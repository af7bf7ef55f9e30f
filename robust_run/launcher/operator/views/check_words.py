"""API messages about checks. No behaviour."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from robust_run.health.checks.show import ChecksReport
from robust_run.health.checks.types import CheckName

SCHEMA = 1


class CheckWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes to check, and how."""

    nodes: Annotated[tuple[str, ...], Meta(max_length=100_000)] = ()
    """Names of hosts; none: all that nothing runs on."""
    only: tuple[CheckName, ...] = ()
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 3.0
    passes: Annotated[int, Meta(ge=1, le=1_000_000)] = 3
    limit_s: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    folder: Annotated[str, Meta(max_length=4096)] = ""


class CheckBegun(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of a wish have begun."""

    schema: int = SCHEMA
    number: int
    nodes: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    """Nodes that are not checked and why, a sentence each."""


class CheckView(msgspec.Struct, frozen=True, kw_only=True):
    """How they go."""

    lines: tuple[str, ...]
    """From the number that was asked for."""
    next: int
    """Number of the line after these."""
    is_over: bool
    given_up: str = ""
    report: ChecksReport | None = None
    """Once they are over."""
