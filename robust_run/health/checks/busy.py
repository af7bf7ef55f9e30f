"""Whether this node has other work: what is measured beside that is slow, and would be reported as slow. Pure."""

from __future__ import annotations

from robust_run.health.checks.types import Result

#: Load of the last minute, as a share of the CPUs, that says that somebody works here.
BUSY_SHARE = 0.25
#: So many CPUs, or this share of them, worked for others during a check: the work of one is enough where all wait for each
#: other, and the agents of a monitored node take less.
DISTURBING_CPUS, DISTURBING_SHARE = 0.5, 0.02
#: With this share, even a program that does nothing wrong may reach its time limit.
STARVING_SHARE = 0.5


def is_disturbed(result: Result, figure: str) -> bool:
    """Return whether others' work may be what made a figure low. What limits disks and accelerators are not CPUs."""
    return (
        result.device in ("", "cpu")
        and result.check != "disk"
        and _others(result, figure) >= max(DISTURBING_CPUS, DISTURBING_SHARE * result.cpus)
    )


def _others(result: Result, figure: str) -> float:
    return result.others_by_figure.get(figure, result.others_cpus)


def is_starved(result: Result) -> bool:
    """Return whether others' work may be why a check program did not end within its limit."""
    return result.cpus > 0 and result.others_cpus >= STARVING_SHARE * result.cpus


def disturbance(result: Result, figure: str = "") -> str:
    """Return what disturbed a check, or a figure of it, as a clause."""
    others = _others(result, figure)
    cpus = f"{others:.1f} of {result.cpus} CPUs" if result.cpus else f"{others:.1f} CPUs"
    return f"{cpus} of {result.node} worked for others meanwhile; check again when nothing else runs there"


def busy_words(load: float, cpus: int) -> str:
    """Return what to say before anything is measured; empty: nothing. `load`: as `uptime` shows it, of the last minute."""
    if load <= max(1.0, BUSY_SHARE * cpus):
        return ""
    return (
        f"warning: this node is busy: a load of {load:.1f} in the last minute, {cpus} CPUs. What is measured now may be slow "
        "for that reason alone; better ended now (Ctrl-C) and typed again when nothing else runs"
    )
