"""What a `checkpoint_id` may be, and what its name says. Pure."""

from __future__ import annotations

import os
import re

from robust_run.ckpt_io.address import parse
from robust_run.errors import UserError

_STEP = re.compile(r"(?:^|[^A-Za-z])(?:step|iter|iteration|global_step)[-_]?(\d{1,18})$", re.IGNORECASE)


def is_valid(checkpoint_id: object) -> bool:
    """Whether it is a path or URL that a checkpoint can have."""
    if not isinstance(checkpoint_id, (str, os.PathLike)):
        return False
    spelt = os.fspath(checkpoint_id)
    if not isinstance(spelt, str):
        return False
    try:
        _ = parse(spelt).name  # that there is one
    except UserError:
        return False
    return True


def step_of(checkpoint_id: str | os.PathLike[str]) -> int | None:
    """Return the training step that a checkpoint's name ends with, as in `run/step-4000`; None where it says none."""
    match = _STEP.search(parse(os.fspath(checkpoint_id)).name)
    return int(match[1]) if match else None
