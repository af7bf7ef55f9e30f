"""How much of a checkpoint is fetched ahead, and how fast. Decides only; imported where that was said."""

from __future__ import annotations

import msgspec

from robust_run.errors import UserError
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.start.options.memory_use import parse_bytes

_NAME = "--ckpt-ahead"


def with_ahead(spec: JobSpec, text: str) -> JobSpec:
    """Return a job with what was asked for: `auto`, `off`, `64G`, `64G,500M` or `auto,500M`. Raises UserError."""
    size, comma, rate = (part.strip() for part in text.strip().partition(","))
    if size == "off" and not comma:
        return msgspec.structs.replace(spec, ckpt_ahead=False)
    if comma and not rate:
        raise UserError(
            f"{_NAME} {text!r}: nothing stands after the comma; write a rate, as in 64G,500M, or leave the comma out"
        )
    return msgspec.structs.replace(
        spec,
        ckpt_ahead_bytes=None if size == "auto" else parse_bytes(_NAME, size),
        ckpt_ahead_bytes_s=parse_bytes(f"{_NAME} rate", rate) if rate else None,
    )
