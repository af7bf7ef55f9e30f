"""Files of settings that people write, in TOML: read up to a size, with a mistake as one line."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from robust_run.errors import UserError

MOST_BYTES = 1 << 20


def read(path: str, option: str) -> str:
    """Return the text of a file. Raises UserError: it cannot be read, or is too large. `option`: which names it."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{option} {path} cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UserError(f"{option} {path} is larger than {MOST_BYTES >> 20} MiB; it is hardly the right file")
    return data.decode("utf-8", "replace")


def parsed(text: str, where: str, form: str = "TOML") -> Any:
    """Return what a text says in TOML, or in JSON (`form`). Raises UserError. `where`: what it is, for the message."""
    toml = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        module: Any = importlib.import_module("json" if form == "JSON" else toml)
    except ImportError as error:
        raise UserError(f"{where} needs {toml} with this Python: pip install {toml}") from error
    try:
        return module.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no {form}: {str(error)[:200]}") from error
