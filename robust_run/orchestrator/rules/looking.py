"""How long a node looks for who leads its job, and what it says when it gives up. Pure.

A node that was not told whether it leads, on the machine where all meet, leads if it can listen there. If it cannot, somebody
else does listen, and mostly that is who leads: another node of the job that was started at the same moment. How it is known that
it is not: it says what nobody of this job says, or lets nobody in for `STRANGE_S`. What healthy thing looks the same: a leader
that has bound its port and does not answer yet, because it imports, waits for a CPU, or looks for an earlier run
(`succession.coming_back`, half a minute); it is waited for.
"""

from __future__ import annotations

LEADERLESS_S = 25.0
"""Of a node that led and was told to leave: another leads by then."""
STRANGE_S = 60.0


def limit_s(join_timeout_s: float, *, taken: str, leaves: str, is_in: bool) -> float:
    """Return how long it is looked. `taken`: why the port cannot be listened on; `is_in`: a leader has let this node in."""
    if is_in:
        return join_timeout_s
    if leaves:
        return LEADERLESS_S
    return min(join_timeout_s, STRANGE_S) if taken else join_timeout_s


def why_strange(taken: str, heard: str | None, *, is_in: bool) -> str:
    """Return what shows that another program has the port of this machine where the nodes meet; empty: nothing does.

    `heard`: what is wrong with what it says; empty: nothing was heard for so long; None: it was no stranger who spoke.
    """
    if not taken or heard is None or is_in:
        return ""
    return f"{taken}; nobody of this job answers there" + (f": {heard}" if heard else "")
