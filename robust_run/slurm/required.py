"""A job that requires a node (`-w`) and is to be kept from it. Pure.

Slurm takes both lists without a word: such a job waits for ever. What the user typed is not changed, so of the two it is the
exclusion that goes. The job then gets the node again and does not use it, because the journal of the run holds the eviction:
- where the others are enough (`--nnodes MIN:MAX`, standbys), it is requeued and goes on as it did;
- where they are not, another start could only fail like this one: it is requeued and held, which loses nothing, and one line says
  the commands that take the node out of the requirement.
A node that is dead and required is not excluded either: Slurm starts the job when it is mended, and says so in squeue.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.errors import UserError
from robust_run.slurm.rules.hostlist import expand

MOST_NAMES = 8


class Contradiction(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that a job is to be kept from and requires."""

    job: str
    nodes: tuple[str, ...]
    others: tuple[str, ...]
    """What else it requires."""
    excluded: str
    """Its ExcNodeList as it would be."""
    is_stuck: bool
    """Without them too few nodes would be left for it to start."""

    @property
    def sentence(self) -> str:
        """What is said of it, with what to do."""
        names = ", ".join(self.nodes[:MOST_NAMES]) + (" ..." if len(self.nodes) > MOST_NAMES else "")
        mend = f"scontrol update JobId={self.job} ReqNodeList={','.join(self.others)} ExcNodeList={self.excluded}"
        if self.is_stuck:
            return (
                f"job {self.job} is held: it requires {names} (-w), which it must do without, and the other nodes are too few; "
                f"{mend} && scontrol release {self.job} starts it on others"
            )
        return (
            f"job {self.job} requires {names} (-w), which it is to be kept from: not excluded, because with both it would never "
            f"start; {mend} has it started on others"
        )


def split(names: Sequence[str], required: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which of these nodes may be excluded, and which are required. A list that cannot be read may name all of them."""
    if not required:
        return tuple(names), ()
    try:
        wanted = frozenset(expand(required))
    except UserError:
        return (), tuple(names)
    return tuple(each for each in names if each not in wanted), tuple(each for each in names if each in wanted)


def others_of(required: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """Return what is required beside these nodes."""
    try:
        return tuple(each for each in expand(required) if each not in nodes)
    except UserError:
        return ()


def is_stuck(evicted: Sequence[str], required: Sequence[str], *, nodes: int, fewest: int) -> bool:
    """Whether a job that gets the nodes it requires again has too few that it may use. What is dead comes back, or is waited for.

    `nodes`: how many it asks Slurm for. `fewest`: what it needs to start.
    """
    return nodes - len(set(evicted).intersection(required)) < fewest
