"""Fault isolation for what a job can do without: a mistake of ours in it must not end training."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import WriteTransport

#: What a machine or a limit of the user's lacks, which is no fault of ours.
LACKS = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)


def lack(error: OSError) -> str:
    """Return what is lacking, in words, and where its limit is set."""
    said = (error.strerror or str(error)).lower()
    name = f" for {error.filename!r}" if error.filename else ""
    if error.errno != errno.EMFILE:
        return f"{said}{name}"
    import resource

    return f"{said}{name} (`ulimit -n` is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]}); raise the limit"


def cut(transport: WriteTransport) -> None:
    """End a connection at once, also where it has ended.

    A TLS transport of asyncio that was closed twice (by us and by the other end, say) has let go of what could be ended: releases
    of Python before 3.11.3 raise AttributeError then.
    """
    with suppress(AttributeError):
        transport.abort()


class Harmless:
    """Runs calls until one fails by a fault of ours; that is said once, and nothing is run any more."""

    def __init__(self, what: str, say: Callable[[str], None]) -> None:
        """`what` is off from then on, as people are told: `looking at ranks`."""
        self._what = what
        self._say = say
        self.has_failed = False

    def run(self, call: Callable[[], None]) -> bool:
        """Call; return whether that went well."""
        if self.has_failed:
            return False
        try:
            call()
        except Exception as error:
            self.failed(error)
        return not self.has_failed

    def failed(self, error: Exception) -> None:
        """Take note of a fault, and say it if it is the first."""
        if self.has_failed:
            return
        self.has_failed = True
        if isinstance(error, OSError) and error.errno in LACKS:
            self._say(f"{self._what} is off for the rest of this job: {lack(error)}")
            return
        from traceback import extract_tb

        frames = extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        self._say(
            f"{self._what} is off for the rest of this job, by a fault of robust-run{where}: {text}; please report it"
        )
