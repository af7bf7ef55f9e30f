"""What a run may be called. Pure."""

from __future__ import annotations

import re

LONGEST_ID = 128
_ID = re.compile(r"[A-Za-z0-9._-]+")


def is_run_id(text: str) -> bool:
    """Whether a text is the name of a folder and of nothing else: no path, and not too long."""
    return _ID.fullmatch(text) is not None and text not in (".", "..") and len(text) <= LONGEST_ID
