"""Whether a node is fit to run something, by what Slurm says of it and by whether its slurmd takes a connection.

Slurm itself notices a dead node only after its SlurmdTimeout, 300 s unless a site says otherwise.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from robust_run.slurm.scontrol import ask, fields

CONNECT_S = 2.0
SLURMD_PORT = 6818
"""Where a site does not say another."""

_DOWN = ("DOWN", "NOT_RESPONDING", "FAIL", "POWER", "*", "REBOOT")


def is_down(said: Mapping[str, str]) -> bool:
    """Whether the fields of a node say that it is down, does not respond or is about to go; not if they say nothing. Pure."""
    return any(word in said.get("State", "") for word in _DOWN)


def slurmd_at(said: Mapping[str, str], name: str) -> tuple[str, int]:
    """Return where a node's slurmd listens. Pure."""
    port = said.get("Port", "")
    return said.get("NodeAddr") or name, int(port) if port.isdecimal() and len(port) < 6 else SLURMD_PORT


def answers(host: str, port: int) -> bool:
    """Whether a machine accepts connections. May block for a moment."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError):
        return False
    return True


def is_dead(name: str, env: Mapping[str, str], answers: Callable[[str, int], bool] = answers) -> bool:
    """Whether a node is down for Slurm, or its slurmd cannot be reached. May block. False where Slurm says nothing."""
    answer = ask(("show", "node", "-o", name), env)
    if not answer.ok:
        return False
    said = fields(answer.text)
    return is_down(said) or not answers(*slurmd_at(said, name))
