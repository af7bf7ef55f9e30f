"""The first node cannot start the job: the others, which look for a controller there, are told so and need not wait.

They hear it as a controller's refusal, in the form that every version understands (see `control.handshake`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import suppress

from robust_run.launcher.control.handshake import OURS, first_line, refusal_line

QUIET_S, LONGEST_S = 3.0, 15.0
"""Nobody has come for so long, or has been coming: tasks of a step start together, and ask five times a second."""
ANSWER_S = 1.0
"""What one of them may take."""


def turn_away(
    ports: Sequence[int], others: int, text: str, *, quiet_s: float = QUIET_S, longest_s: float = LONGEST_S
) -> int:
    """Tell so many other nodes at the first port that is free; return how many were. Blocks until nobody comes any more."""
    listening = _listen(ports)
    if listening is None:
        return 0
    told = 0
    give_up_at_s = time.monotonic() + longest_s
    with listening:
        while told < others and (left_s := give_up_at_s - time.monotonic()) > 0:
            listening.settimeout(min(quiet_s, left_s))
            try:
                peer, _ = listening.accept()
            except OSError:
                break
            with peer:
                told += _tell(peer, text)
    return told


def _listen(ports: Sequence[int]) -> socket.socket | None:
    for port in ports:
        with suppress(OSError, OverflowError):
            if socket.has_dualstack_ipv6():
                return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
            return socket.create_server(("", port), backlog=4096)
    return None


def _tell(peer: socket.socket, text: str) -> bool:
    """Answer one that speaks our protocol; whether it was one."""
    peer.settimeout(ANSWER_S)
    said = False
    try:
        if not peer.recv(4096).startswith(b"robust-run "):
            return False
        peer.sendall(first_line(OURS) + refusal_line(text))
        said = True
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(4096):  # to close before it has read all might take the answer from it
            pass
    except OSError:
        return said
    return True
