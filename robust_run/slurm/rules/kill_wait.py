"""KillWait of a site: how long Slurm leaves between its SIGTERM and its SIGKILL. Pure.

The node's own copy of slurm.conf says it, at no cost to the controller of a large cluster. Where it is not readable, or its files
include others that are not looked into, the default of Slurm is assumed; `robust slurm doctor` asks Slurm itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

DEFAULT_S = 30.0
#: Of it, the part that workers may take to end; what they leave is cleared in the rest.
WORKERS_SHARE = 2 / 3
_LINE = re.compile(r"^[ \t]*KillWait[ \t]*=[ \t]*([0-9]{1,6})\b", re.IGNORECASE | re.MULTILINE)
_USUAL = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf", "/etc/slurm-llnl/slurm.conf")


def config_files(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return where the node's slurm.conf may be, the likeliest first: Slurm names it to its tasks."""
    named = env.get("SLURM_CONF", "")
    return ((named,) if named.startswith("/") else ()) + _USUAL


def kill_wait_s(config: str) -> float | None:
    """Return what the text of a slurm.conf says; None: it does not. Of several lines the last counts, as for Slurm."""
    found = _LINE.findall(config)
    return float(found[-1]) if found else None


def workers_time_s(kill_wait_s: float) -> float:
    """Return how long workers may take to end after Slurm's SIGTERM."""
    return round(max(1.0, kill_wait_s * WORKERS_SHARE), 1)
