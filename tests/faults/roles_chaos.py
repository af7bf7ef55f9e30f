"""Random faults in a job of several roles: a schedule, drawn from a seed. `roles_chaos_job.py` carries it out and judges.

    schedule = drawn(random.Random("roles/7/3"), 3)
    print(schedule.name)

The first fault follows from the number, so that each act meets each role however few schedules are drawn; the others are random.
Whatever is drawn the job has to survive.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

ROLES = ("trainer", "rollout", "reward")
MEMBERS = {"trainer": 1, "rollout": 2, "reward": 1}
HOSTS = 3
LAST_S = 8.0
"""Faults begin within so long after the first steps."""
SHORT_LEASE_S, LONG_LEASE_S = 8.0, 600.0
"""With the long one, work that a hung worker has taken is given to nobody else for as long as a trial lasts."""
BRIEF_CUT_S, LONG_CUT_S = 8.0, 70.0

FIRST = (
    *((act, role) for act in ("kill worker", "kill launcher", "stop worker") for role in ROLES),
    ("kill leader", ""),
    ("sleep", "rollout"),
    *(("power", role) for role in ROLES),
    ("cut", "rollout"),
    ("kill follower", "rollout"),
)
ON_HOSTS = frozenset({"power", "cut", "kill follower"})
MORE = ("kill worker", "kill worker", "kill launcher", "kill leader")


@dataclass(frozen=True)
class Fault:
    """Something that happens to one member, or to the node that it runs on."""

    at_s: float
    act: str
    member: str = ""
    """`rollout-1`; of `kill leader`: none."""
    lasts_s: float = 0.0
    """Until a cut link is mended; 0: it stays as it is."""

    @property
    def name(self) -> str:
        """For people."""
        lasts = f" for {self.lasts_s:g} s" if self.lasts_s else ""
        whom = f" of {self.member}" if self.member else ""
        return f"{self.act}{whom} after {self.at_s:g} s{lasts}"

    @property
    def role(self) -> str:
        """Whose it is."""
        return self.member.rpartition("-")[0]

    @property
    def needs_a_new_worker(self) -> bool:
        """Whether its member cannot go on with the process that it has."""
        return self.act in ("kill worker", "kill launcher", "power") or (
            self.act == "cut" and self.lasts_s == LONG_CUT_S
        )


@dataclass(frozen=True)
class Schedule:
    """All that happens in one trial."""

    synchronous: bool
    hosts: int
    """0: one node, this machine."""
    lease_s: float
    order: tuple[str, ...]
    """Roles in the order of their file: the first member runs on the node that leads, the second on the next."""
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """For people."""
        mode = "synchronous" if self.synchronous else "asynchronous"
        where = f"{self.hosts} nodes" if self.hosts else "one node"
        return f"{mode}, {where}, lease {self.lease_s:g} s: " + "; ".join(fault.name for fault in self.faults)

    @property
    def keeps_leases(self) -> bool:
        """Whether the trainer has to wait for a rollout that is stopped. A leader that is started again gives to others what is
        leased to workers that do not come back to it, and without rounds it goes on with what others make.
        """
        return self.synchronous and self.lease_s == LONG_LEASE_S and all(f.act != "kill leader" for f in self.faults)

    @property
    def spares_the_trainer(self) -> bool:
        """Whether nothing is done to the trainer: then it is one process from the first step to the last."""
        return not any(fault.role == "trainer" for fault in self.faults)


def drawn(chance: random.Random, number: int) -> Schedule:
    """Draw a schedule of one to four faults. `number`: of the schedule, which says what comes first."""
    act, role = FIRST[number % len(FIRST)]
    hosts = HOSTS if act in ON_HOSTS else 0
    synchronous = bool((number // len(FIRST) + number) % 2)
    faults = [_fault(chance, act, role)]
    faults += [_more(chance, role) for _ in range(chance.randint(0, 2 if hosts else 3))]
    faults.sort(key=lambda fault: fault.at_s)
    lease_s = SHORT_LEASE_S if act == "sleep" else chance.choice((SHORT_LEASE_S, LONG_LEASE_S))
    return Schedule(synchronous, hosts, lease_s, order_for(role), tuple(faults))


def order_for(role: str) -> tuple[str, ...]:
    """Return an order of roles in which this one runs on nodes that do not lead."""
    first = "trainer" if role == "reward" else "reward"
    return (first, role, *(each for each in ROLES if each not in (first, role))) if role else ROLES


def _fault(chance: random.Random, act: str, role: str) -> Fault:
    at_s = round(chance.uniform(0.0, LAST_S), 2)
    lasts_s = chance.choice((BRIEF_CUT_S, LONG_CUT_S)) if act == "cut" else 0.0
    return Fault(at_s, act, f"{role}-{chance.randrange(MEMBERS[role])}" if role else "", lasts_s)


def _more(chance: random.Random, first: str) -> Fault:
    """Draw one that is not done to the role that comes first: what is cut off or stopped is left to what must happen to it."""
    act = chance.choice(MORE)
    role = chance.choice([each for each in ROLES if each != first]) if act != "kill leader" else ""
    return _fault(chance, act, role)
