"""A leader whose own node leaves in good order: whether it hands the leadership over, and when. Pure.

How it knows: the agent of its node has said that it leaves (`NodeLeft`), which it does only where it was told to; that is in the
journal. A node that is lost, or whose agent was killed, says nothing of the kind: there, this process is gone too or about to be.

Order. First what a successor needs is on record, that this node left with it: then the next leader gives its place to a standby
at once, instead of waiting for its lease. Then the leadership is given back; only after that may another be elected, so there
are never two. This process is not a candidate again: its node is about to be gone. Workers notice nothing of it, and
what they leave in memory goes the way of any node that leaves: straight between the nodes' keepers.

Where those in line are silent for a moment, it is waited until one is heard or all are given up: a starved
machine is no reason to end the job.

What looks the same: the last node that is left. There nobody is in line who answers, and the job ends as a whole. What comes
later: a node of the same name joins whoever leads then, as another agent. A starved machine: if the record does not reach the
disk within `RECORD_S`, it is not waited for. A successor that does not find it waits for this node's lease, and hears from its
agent that it leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

#: How long the record may take.
RECORD_S = 2.0
#: A candidate that was heard within so many heartbeats answers. One that does not is late, or about to be given up.
HEARTBEATS = 2.5

Line = Literal["answers", "silent", "nobody"]
Handing = Literal["stay", "wait", "resign", "end_job"]


def line_of(silent_s: Sequence[float | None], heartbeat_s: float) -> Line:
    """Return whether one of those in line answers. `silent_s`: for how long each has been silent; None: it is not connected."""
    if any(each is not None and each <= HEARTBEATS * heartbeat_s for each in silent_s):
        return "answers"
    return "silent" if silent_s else "nobody"


def handing_of(line: Line, *, has_left: bool, job_ends: bool, is_kept: bool, since_s: float) -> Handing:
    """Return what a leader does.

    `line`: those who may lead next: one answers, none does for a moment, or nobody is there. `has_left`: its own node leaves the
    job; `since_s`: for how long that is known. `job_ends`: it is being ended, or over. `is_kept`: a successor would know
    all that this leader knows.
    """
    if not has_left or job_ends:
        return "stay"
    if line == "nobody":
        return "end_job"
    return "resign" if line == "answers" and (is_kept or since_s >= RECORD_S) else "wait"
