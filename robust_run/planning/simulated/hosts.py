"""Hosts of a simulated cluster: which are there, which faults are in them, who runs on them."""

from __future__ import annotations

import random

import msgspec

from robust_run.launcher.model.job import NodeInfo, RankEvidence
from robust_run.planning.faults import Fault


class Host(msgspec.Struct, kw_only=True):
    """One machine, and its agent if one is there."""

    index: int
    name: str
    agent: str = ""
    """Id of the agent that runs on it; empty: none does."""
    is_out: bool = False
    """It was put out of the job, or is lost, and will be mended."""
    boots: int = 0
    fault: Fault | None = None
    """What is in it until it is repaired."""
    struck_by: Fault | None = None
    """What it was put out for."""
    ended: RankEvidence | None = None
    """The rank that ended by itself in the attempt that runs."""

    def boot(self, gpus: int, *, has_memory: bool) -> NodeInfo:
        """Start an agent; return what it says of itself."""
        self.boots += 1
        self.agent, self.ended = f"{self.index:05d}-{self.boots:05d}", None
        return NodeInfo(id=self.agent, name=self.name, nproc=gpus, ckpt_dir="/ckpt", has_memory=has_memory)


def share_of(seed: int, attempt: int, agent: str, what: str) -> float:
    """Return how early a node is among all, in what all nodes of an attempt do: 0 to 1, the same whenever it is asked."""
    return random.Random(f"{seed}/{attempt}/{agent}/{what}").random()
