"""Short ways to write down stacks and sights."""

from __future__ import annotations

from typing import Any

from robust_run.tracer.types import Frame, ProcessSight, RankSight, ThreadStack

STANDARD = "/opt/py/lib/python3.11"
TORCH = f"{STANDARD}/site-packages/torch"
SITE = f"{STANDARD}/site-packages"
#: Where the wrappers of our own recorder lie.
OURS = f"{SITE}/robust_run/tracer/arm/recorder.py"


def stack(*frames: str, main: bool = True) -> ThreadStack:
    """`stack("/app/a.py:3 f", "/app/a.py:9 <module>")`, innermost first."""
    return ThreadStack(is_main=main, frames=tuple(map(_frame, frames)))


def _frame(text: str) -> Frame:
    spot, _, function = text.rpartition(" ")
    file, _, line = spot.rpartition(":")
    return Frame(function, file, int(line))


def process(*samples: ThreadStack, pid: int = 10, is_rank: bool = True, **fields: Any) -> ProcessSight:
    """A process with one thread in each sample."""
    return ProcessSight(
        pid=pid,
        is_rank=is_rank,
        stacks=tuple((sample,) for sample in samples),
        **{"command": "python train.py", "state": "S", "parent": 1} | fields,
    )


def sight(*processes: ProcessSight, rank: int = 0, **fields: Any) -> RankSight:
    return RankSight(rank=rank, node="gpu-01", processes=processes, **fields)


GETS = stack(
    f"{STANDARD}/threading.py:331 wait",
    f"{STANDARD}/queue.py:180 get",
    "/app/data.py:88 batch",
    "/app/train.py:40 <module>",
)
REDUCES = stack(
    f"{TORCH}/distributed/distributed_c10d.py:2810 all_reduce",
    f"{TORCH}/distributed/c10d_logger.py:83 wrapper",
    "/app/train.py:52 step",
    "/app/train.py:90 <module>",
)
GATHERS = stack(
    f"{TORCH}/distributed/distributed_c10d.py:3100 all_gather", "/app/eval.py:12 score", "/app/train.py:95 <module>"
)
SPINS = stack("/app/train.py:12 spin", "/app/train.py:90 <module>")
SAVES = stack(
    f"{TORCH}/serialization.py:850 _save",
    f"{TORCH}/serialization.py:700 save",
    "/app/train.py:70 checkpoint",
    "/app/train.py:90 <module>",
)
