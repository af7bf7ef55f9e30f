"""Whom `--notify` tells, checked; for jobs that tell somebody."""

from __future__ import annotations

import os

from robust_run.errors import UserError
from robust_run.launcher.model.world import World, absolute
from robust_run.launcher.records.notify.target import parse


def resolve_notify(words: tuple[str, ...], world: World) -> tuple[str, ...]:
    """Return whom to tell, files by their absolute paths. Raises UserError, which shows no secret."""
    found = []
    for word in words:
        if word.startswith("@"):
            path = absolute(os.path.expanduser(word[1:]), world)
            if not world.files.access(path, os.R_OK):
                raise UserError(f"--notify {word}: the file is not there, or may not be read")
            lines = world.files.text(path).splitlines()
            parse(lines[0] if lines else "")
            found.append(f"@{path}")
        else:
            parse(word)
            found.append(word)
    return tuple(found)
