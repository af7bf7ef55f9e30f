"""What Slurm adds to the agent of a node, handed to the launcher, which knows nothing of Slurm."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robust_run.launcher.agent_signals import Reacts, Watches
    from robust_run.launcher.node import Node
    from robust_run.launcher.superior import Superior


def watch(agent: Reacts, node: Node, superior: Superior, loop: asyncio.AbstractEventLoop) -> Watches:
    """Begin to look after a job's time limit, its warnings and its lost agents: an `agent_signals.Scheduler`."""
    from robust_run.launcher.slurm.watch import Watch

    return Watch(agent, node, superior, loop)
