"""What Slurm adds to the agent of a node, handed to the launcher, which knows nothing of Slurm."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from robust_run.launcher.agent.node import Node
    from robust_run.launcher.agent.signals import Reacts, SignalWatcher
    from robust_run.launcher.model.links import ControllerLink


def watch(agent: Reacts, node: Node, link: ControllerLink, loop: asyncio.AbstractEventLoop) -> SignalWatcher:
    """Begin to look after a job's time limit, its warnings and its lost agents: an `agent.signals.Scheduler`."""
    from robust_run.slurm.watch import SlurmWatch

    return SlurmWatch(agent, node, link, loop)
