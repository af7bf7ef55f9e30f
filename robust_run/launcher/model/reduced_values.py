"""What an agent tells its controller of reduced values (`--check-reduced`). No behaviour."""

from __future__ import annotations

from typing import Annotated

import msgspec

from robust_run.tracer.reduced.types import ReducedValue


class ReducedValues(msgspec.Struct, frozen=True, tag="reduced_values", kw_only=True):
    """Checksums that ranks of a node have noted since the last time; for the controller alone, as `Paces` is."""

    attempt: int
    values: Annotated[tuple[ReducedValue, ...], msgspec.Meta(max_length=1 << 16)]
