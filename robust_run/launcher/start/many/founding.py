"""Whether a node that finds no controller founds a run, joins the one that its job has, goes on with it, or waits. Pure.

The worst that can happen is a second training of one job: both write the same checkpoints. So a run is founded only where it is
known that the job has none:

- **The controller cannot move** (no --controller-standby). It is where the nodes meet or nowhere, and this node has that address:
  there is no other. Workers of a run whose controller died a moment ago may still live: after a return (an old mark on this
  node's disk) no attempt begins before their leases have ended.
- **It can move.** Then candidates share a place, the folder of runs or etcd, and what is on record there is the truth. A
  leader that answers is joined. One whose heartbeat goes on, and that does not answer this node, is waited for: it may be
  starved, or this is the side of a partition that has no leader. A run that is over makes room for a new one at once. A run
  that is not over, and that has had no leader for some turns, is **gone on with** by the rules of its own elections: should a
  candidate of it be alive after all, one of the two leads, never both.
- **The place does not know the job.** That may be the very first start, or a folder that is not mounted yet. A node that
  remembers a run waits for it. One that remembers nothing founds; where the folder is not known to be shared, the first attempt
  then needs a majority of the job's nodes, which cannot come together beside a run that has the others.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Act = Literal["join", "go_on", "found", "wait", "refuse"]


class RunSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The newest run of this job in the place that its nodes share."""

    run_id: str
    number: int = 0
    """In the register; 0: it is in none."""
    over: bool = False
    gone: bool = False
    """Its directory was removed."""
    leader: str = ""
    """HOST:PORT of the newest leader on record; empty: none is."""
    host: str = ""
    answers: bool = False
    """Whether that one takes a connection of this node."""
    silent_s: float = 0.0
    """How long it has shown no sign of life in the place."""
    same_command: bool = True
    """Whether it runs what this node was told to run."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that a node knows before it decides."""

    moves: bool
    """Whether the controller may move from the node that founded (--controller-standby)."""
    scheduled: bool = False
    """Whether a scheduler has started the nodes of this job, which sees to it that an earlier start is over."""
    forced: bool = False
    """--found was given."""
    place: str = ""
    """The shared place, for messages."""
    trouble: str = ""
    """Why the place could not be asked; empty: it answered."""
    is_shared: bool = True
    """Whether the place is known to be the same for all nodes: etcd, or a network file system."""
    run: RunSeen | None = None
    """None: the place has none."""
    remembers: str = ""
    """Run that this node had a part in and that has not ended as far as it knows; empty: none."""
    named: str = ""
    """--run-id, where it is what names the job; empty: it is not."""
    fewest: int = 1
    most: int = 1
    """Nodes of the job, standbys not counted."""
    watched_s: float = 0.0
    """For how long this node has looked."""
    patience_s: float = 5.0
    """Silence of a leader after which its candidates have had their turn."""
    hold_s: float = 4.0
    """After so long no worker of an agent lives that has heard of no controller; 0: the run that it had a part in is over."""


class Founding(msgspec.Struct, frozen=True, kw_only=True):
    """What the node does."""

    act: Act
    where: str = ""
    """join: HOST:PORT of the leader."""
    run_id: str = ""
    """go_on: the run."""
    needs: int = 0
    """found, go_on: nodes without which the first attempt does not begin; 0: as many as the job needs."""
    hold_s: float = 0.0
    """found: no attempt begins before."""
    after: int = 0
    """found: number of the run before it in the register."""
    closes: str = ""
    """found: an earlier run that nobody leads, which is ended for good first."""
    say: str = ""
    """A line for the user, said once; empty: this is what is expected."""


FORCE = "--found starts a new run all the same"


def decide(known: Known) -> Founding:
    """Return what a node does that could listen where its job's nodes meet."""
    if not known.moves:
        return _after_the_old(known) if known.remembers and known.hold_s else Founding(act="found")
    run = known.run
    if known.scheduled:
        return Founding(act="join", where=run.leader) if run is not None and run.answers else Founding(act="found")
    if known.trouble:
        return Founding(
            act="wait", say=f"cannot learn whether this job runs already: {known.trouble}; asking {known.place} again"
        )
    if run is None:
        return _unknown(known)
    if run.over or run.gone:
        return Founding(act="found", after=run.number, hold_s=known.hold_s if run.gone else 0.0)
    if not run.answers and known.watched_s < known.patience_s:
        return Founding(act="wait")  # a moment: its leader may live
    if known.forced:
        return _beside(known, run)
    if known.named and known.named != run.run_id:
        return Founding(
            act="refuse",
            say=f"--run-id {known.named}: run {run.run_id} of this job is not over{_led(run)}; leave --run-id out and this "
            f"node has a part in that one; {FORCE}",
        )
    if run.answers:
        return Founding(act="join", where=run.leader)
    if run.silent_s < known.patience_s:
        return Founding(
            act="wait",
            say=f"run {run.run_id} of this job goes on{_led(run)}, which does not answer this node; waiting for it; {FORCE}",
        )
    if not run.same_command:
        return Founding(act="found", after=run.number, closes=run.run_id, hold_s=known.hold_s)
    return Founding(
        act="go_on",
        run_id=run.run_id,
        needs=0 if known.is_shared else _majority(known),  # if it has not begun yet
        say=f"run {run.run_id} of this job is not over and has no leader any more: this node goes on with it; {FORCE}",
    )


def _after_the_old(known: Known) -> Founding:
    return Founding(
        act="found",
        hold_s=known.hold_s,
        say=f"this node had a part in run {known.remembers}, which has not ended as far as it knows: no attempt begins for "
        f"{known.hold_s:.0f} s, in which workers of it end that have no controller any more",
    )


def _beside(known: Known, run: RunSeen) -> Founding:
    """Found although there is a run that is not over; it is ended for good where that can be done."""
    is_silent = not run.answers and run.silent_s >= known.patience_s
    return Founding(
        act="found",
        after=run.number,
        closes=run.run_id if is_silent else "",
        hold_s=known.hold_s,
        say="" if is_silent else f"--found: a new run, although run {run.run_id} of this job goes on{_led(run)}",
    )


def _unknown(known: Known) -> Founding:
    """The place answers and has no run of this job."""
    if known.forced:
        return Founding(act="found", hold_s=known.hold_s if known.remembers else 0.0)
    if known.remembers:
        return Founding(
            act="wait",
            say=f"this node had a part in run {known.remembers} of this job, which has not ended as far as it knows, and "
            f"{known.place} has nothing of it; is its file system mounted? Waiting for it, or for its controller; {FORCE}",
        )
    majority = _majority(known)
    if known.is_shared or majority == 0:
        return Founding(act="found")
    return Founding(
        act="found",
        needs=majority,
        say=f"{known.place} is on no file system that is known to be shared: this job may run elsewhere, and begins with "
        f"{majority} of its {known.most} nodes; --found begins with {known.fewest}",
    )


def _majority(known: Known) -> int:
    return majority_of(known.fewest, known.most)


def majority_of(fewest: int, most: int) -> int:
    """Return how many nodes a run needs that may not be the only one; 0: as many as any."""
    majority = most // 2 + 1
    return majority if majority > fewest else 0


def _led(run: RunSeen) -> str:
    return f", led by {run.host} at {run.leader}" if run.leader else ""
