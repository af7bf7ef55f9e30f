"""Running programs inside an image: who prepares the place, what they find there, and how they get in.

    agent ── start(plan) ──► holder      a process of ours in a private mount namespace: block server, file system, the view
      │   ◄── descriptors of the namespaces that it made
      └── inside.command(argv) ──► enter ──► the program, in them

The agent itself stays outside. The namespaces live as long as a process or a descriptor is in them: when the agent and its
workers are gone, also if they were killed, nothing is mounted any more.

**Invariant:** no program of the image runs before the view is complete, and none outside of it.
"""

from robust_run.prefetch.inside.binds import ordered
from robust_run.prefetch.inside.handle import Begun, Inside, begin, start
from robust_run.prefetch.inside.types import IMAGE, STAGE, Bind, InsidePlan, Laid, LaidBlocks

__all__ = ["IMAGE", "STAGE", "Begun", "Bind", "Inside", "InsidePlan", "Laid", "LaidBlocks", "begin", "ordered", "start"]
