"""What the children of a rank are for, as their stacks tell: DataLoader workers, compile workers."""

from __future__ import annotations

from robust_run.tracer.stacks.normal import origin, telling_frames
from robust_run.tracer.types import ProcessSight, ThreadStack

RANK_ROLE = "rank"
LOADER_ROLE = "DataLoader worker"


def role(process: ProcessSight, stack: ThreadStack) -> str:
    """Say what a process is for: `rank`, `DataLoader worker`, `compile worker`, else its command."""
    if process.is_rank:
        return RANK_ROLE
    files = [frame.file for frame in stack.frames]
    if any(file.endswith("torch/utils/data/_utils/worker.py") for file in files):
        return LOADER_ROLE
    if any("torch/_inductor/compile_worker/" in file for file in files):
        return "compile worker"
    return process.command


def has_nothing_to_do(stack: ThreadStack) -> bool:
    """Whether a child sleeps in torch's own loop, or its tool's, rather than in something that the user's program called."""
    origins = [origin(frame) for frame in telling_frames(stack)]
    caller = next((one for one in origins if one != "standard"), "standard")
    return not origins or (origins[0] == "standard" and caller in ("standard", "torch"))
