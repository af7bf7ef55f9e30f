"""Whether this node has other work: what is measured beside that is slow, and would be reported as slow. Pure."""

from __future__ import annotations

#: Load of the last minute, as a share of the CPUs, that says that somebody works here.
BUSY_SHARE = 0.25


def busy_words(load: float, cpus: int) -> str:
    """Return what to say before anything is measured; empty: nothing. `load`: as `uptime` shows it, of the last minute."""
    if load <= max(1.0, BUSY_SHARE * cpus):
        return ""
    return (
        f"warning: this node is busy: a load of {load:.1f} in the last minute, {cpus} CPUs. What is measured now may be slow "
        "for that reason alone; better ended now (Ctrl-C) and typed again when nothing else runs"
    )
