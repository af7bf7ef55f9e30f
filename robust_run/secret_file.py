"""Reading of files that hold a secret, a token of a job, of its nodes, of a store: one way for all, as careful for each."""

from __future__ import annotations

import os
import stat

from robust_run.errors import UserError

SHORTEST = 16
LONGEST = 4096
"""Characters of a secret."""


def read_secret(path: str, otherwise: str = "") -> str | None:
    """Return the secret in a file; None if there is no such file. `otherwise`: what else the user may do, for messages.

    Raises UserError for what is no file, cannot be read, holds no secret, or can be read or written by others.
    """
    advice = f"; {otherwise}" if otherwise else ""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
        try:
            status = os.fstat(descriptor)
            content = os.read(descriptor, LONGEST + 1) if stat.S_ISREG(status.st_mode) else b""
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read the secret in {shown(path)}: {error.strerror}{advice}") from error
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"the secret {shown(path)} is not a file{advice}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise UserError(f"others can use the secret in {shown(path)} (mode {mode:04o}): chmod 600 {shown(path)}")
    return checked(content.decode(errors="surrogateescape"), shown(path))


def checked(text: str, where: str) -> str:
    """Return a secret without the white space around it. Raises UserError for one that is too short or too long."""
    secret = text.strip()
    if not SHORTEST <= len(secret) <= LONGEST:
        raise UserError(
            f"the secret in {where} has {len(secret)} characters, needs {SHORTEST} to {LONGEST}: write a random one there"
        )
    return secret


def shown(path: str) -> str:
    """Return `path` for a message: as it is, or quoted where it would break the line."""
    return path if path.isprintable() else repr(path)
