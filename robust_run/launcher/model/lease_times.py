"""Heartbeat timeouts: how long a silent node, controller or leader is waited for, each derived once from the lease. Pure.

    0 ── look_elsewhere_s ── stuck_s ── lease_s ── guard_s ── lost_s ── hold_s ──►  silence of the other side
         agent: is there      its node:  agent:    guard:     controller:  new controller:
         another leader?      replace    ends its  kills the  the node is  who is silent is
                              the        workers   agent      lost         known to be lost
                              controller

Workers must be dead (`guard_s`) before the controller starts a replacement (`lost_s`), also if their agent failed to end them.

The lease adapts to what the machines show: each heartbeat says how late the timers of its node fire, and its answer says how long
the lease is that it renews (`adapted`). Both fences may then act so much later, which `lost_s` allows for. Where nothing is later
than half a second, all of this is zero: 3.0, 3.2, 3.5 s.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

from robust_run.launcher.model.job import ManyNodes

#: How long after the end of a lease the controller still waits: ending workers takes time, and so does looking.
MARGIN_S = 0.5
#: How long after the end of a lease the guard waits for the agent to act.
GUARD_AFTER_S = 0.2
#: A resumed controller begins no attempt for this much longer than it waits for nodes: who is silent is known to be lost by then.
HOLD_MARGIN_S = 0.5
#: Shortest lease of agents where etcd elects the controller: an election takes 2 to 3 s there, and workers that still train
#: must outlive it.
ETCD_LEASE_S = 5.0
#: Part of a lease after which an agent looks for another controller, where there are candidates.
LOOK_ELSEWHERE_PART = 0.6
#: Part of a lease after which a controller that is silent is replaced by its own node.
STUCK_PART = 2 / 3
#: Lateness that calls for no longer lease, as a part of it: any machine shows as much while programs start (half a second where
#: two CPUs import torch four times), and of three heartbeats two may still be lost.
QUIET_PART = 1 / 3
#: Lateness of the fences that `MARGIN_S` allows for.
QUIET_S = 0.5
#: Lateness is rounded up to one of these, so that a lease changes seldom. What is later is taken for the last.
LATE_STEPS_S = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
#: By how many times the lateness a lease is longer: a beat, its answer and both looks may be late, and worse comes after bad.
LATE_FACTOR = 4.0
#: Longest lease that lateness may bring about, in seconds. A user may ask for more.
LONGEST_LEASE_S = 15.0
#: How long a dead leader blocks its successor, and how long one that is held up stays the leader: so long at least,
LEADER_TTL_S = 1.0
#: and as much of the lease of agents, which is longer where machines are busy.
LEADER_TTL_PART = 1 / 3
#: A leader that was lost before it had renewed its lease so often (three times in each) was held up by its machine, or struck
#: at once:
FLEETING_RENEWALS = 30
#: then its successor's lease is so many times as long, up to this. Where no leader lasts, as on a starved machine, nobody trains.
LONGER_TTL_FACTOR, LONGEST_LEADER_TTL_S = 2.0, 4.0


@dataclass(frozen=True)
class LeaseTimes:
    """What follows from one lease."""

    lease_s: float
    """An agent that has had no answer for so long ends its workers."""
    late_s: float = 0.0
    """So much later than they are due the fences of this node may act."""

    @property
    def look_elsewhere_s(self) -> float:
        """Silence after which an agent asks whether another candidate leads."""
        return self.lease_s * LOOK_ELSEWHERE_PART

    @property
    def stuck_s(self) -> float:
        """Silence after which a controller is replaced by its own node: before the leases of all agents end."""
        return self.lease_s * STUCK_PART

    @property
    def lost_s(self) -> float:
        """Silence after which an agent has ended its workers for certain, and the controller counts its node as lost."""
        return self.lease_s + MARGIN_S + self.late_s

    @property
    def hold_s(self) -> float:
        """How long a controller that takes over begins no attempt."""
        return self.lost_s + HOLD_MARGIN_S


def lease_times(many: ManyNodes) -> LeaseTimes:
    """Return the times of a job of several nodes, as its controller grants them."""
    return LeaseTimes(max(many.lease_s, ETCD_LEASE_S) if many.coordinator else many.lease_s)


def quiet_s(base_s: float) -> float:
    """Return the lateness up to which a lease and its fences are as usual."""
    return min(base_s * QUIET_PART, QUIET_S)


def adapted(base_s: float, late_s: float) -> LeaseTimes:
    """Return the lease of a node where timers, its own and the controller's, are late by so much, and it is `base_s` else."""
    if late_s <= quiet_s(base_s):
        return LeaseTimes(base_s)
    step = min(bisect_left(LATE_STEPS_S, late_s), len(LATE_STEPS_S) - 1)
    return _longer(base_s, LATE_STEPS_S[step], late_s > base_s * QUIET_PART)


@lru_cache(maxsize=64)
def _longer(base_s: float, step_s: float, is_long: bool) -> LeaseTimes:
    longer_s = min(base_s + LATE_FACTOR * step_s, LONGEST_LEASE_S) if is_long else base_s
    return LeaseTimes(max(base_s, longer_s), step_s)


def longest_hold_s(many: ManyNodes) -> float:
    """Return after how long no worker of a run lives whose leases this node knows nothing of: machines may have been late."""
    return LeaseTimes(max(lease_times(many).lease_s, LONGEST_LEASE_S), LATE_STEPS_S[-1]).hold_s


def leader_ttl_s(lease_s: float) -> float:
    """Return for how long a leader is elected where agents have this lease."""
    return max(LEADER_TTL_S, lease_s * LEADER_TTL_PART)


def following_ttl_s(usual_s: float, before_s: float, renewals: int) -> float:
    """Return the lease of a leader that follows one which was lost, whose lease was `before_s`, after so many renewals."""
    if renewals >= FLEETING_RENEWALS:
        return usual_s
    return max(usual_s, min(LONGER_TTL_FACTOR * before_s, LONGEST_LEADER_TTL_S))
