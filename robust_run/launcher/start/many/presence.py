"""Presence of an agent on a node: a name in the kernel's memory that goes with its process.

An abstract Unix socket belongs to a network namespace, needs no file, and nobody has to clean up after a SIGKILL.
"""

from __future__ import annotations

import errno
import re
import socket

_AGENT_ID = re.compile(r"[0-9a-f]{16}")


def show(agent: str) -> socket.socket:
    """Return a socket that says, for as long as it is open, that the agent of this id lives. Raises OSError."""
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0robust-run-agent-{agent}")
    except OSError:
        mark.close()
        raise
    return mark


def is_alive(agent: str) -> bool:
    """Whether the agent of this id lives on this machine."""
    if not _AGENT_ID.fullmatch(agent):
        return False
    try:
        show(agent).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
