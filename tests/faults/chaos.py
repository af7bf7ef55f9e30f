"""Random faults over several hosts: a schedule, drawn from a seed. `chaos_acts.py` carries it out, `chaos_job.py` judges.

    schedule = drawn(random.Random("7/3"))
    print(schedule.name)

Two nodes train, one or two stand by, and the controller may move. A fault strikes a process or a host and ends by itself, or is
undone: a node that is lost comes back with the same command line. One node at the most is lost for good. So each schedule can be
survived, and the job has to.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NODES = 2
FEWEST, MOST = 3, 5
"""Hosts of a cluster: two that train, the others stand by or come later."""
FIRST_S, LAST_S = 0.5, 20.0
"""Faults begin so long after all ranks have made their first steps."""
STOPPED_S = (2.0, 20.0)
LINK_S = (1.0, 30.0)
AWAY_S = (0.5, 15.0)
"""How long a node that was lost, or killed, stays away."""
LOADS = (0.0, 0.0, 30.0)

PROCESSES = ("rank", "agent", "guard", "controller", "launcher")
"""`launcher`: agent, guard and controller of a host at once."""
ACTS = (
    *(f"kill {each}" for each in PROCESSES),
    *(f"stop {each}" for each in PROCESSES),
    "cut",
    "cut from others",
    "cut to others",
    "power",
    "late joiner",
    "full disk",
    "clock jump",
)
FOR_GOOD = frozenset({"kill agent", "kill guard", "kill launcher", "power"})
"""After these the node's part of the job is over; it returns with the same line, or stays away."""
HARMLESS = frozenset({"late joiner", "full disk", "clock jump"})
"""These take nothing from the job: no node may be lost by them, and no attempt end."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to one host, and for how long."""

    at_s: float
    act: str
    host: int
    lasts_s: float
    """Until the process goes on, the link is mended, the node is back; 0: it stays as it is."""

    @property
    def name(self) -> str:
        """For people."""
        lasts = f" for {self.lasts_s:g} s" if self.lasts_s else ""
        return f"{self.act} at host {self.host} after {self.at_s:g} s{lasts}"


@dataclass(frozen=True)
class Schedule:
    """All that happens in one trial."""

    hosts: int
    load: float
    faults: tuple[Fault, ...]

    @property
    def name(self) -> str:
        """For people."""
        load = f", load {self.load:g}" if self.load else ""
        return f"{self.hosts} hosts{load}: " + "; ".join(fault.name for fault in self.faults)

    @property
    def late(self) -> frozenset[int]:
        """Hosts whose launcher is started by a fault, not at the beginning."""
        return frozenset(fault.host for fault in self.faults if fault.act == "late joiner")

    @property
    def struck(self) -> frozenset[int]:
        """Hosts that something is done to: these alone may be lost."""
        return frozenset(fault.host for fault in self.faults if fault.act not in HARMLESS)

    @property
    def stops_both_fences(self) -> bool:
        """Whether nobody on a node can end its workers for a while: a rank may then live twice (docs/many-nodes.md)."""
        return any(fault.act == "stop launcher" for fault in self.faults)


def drawn(chance: random.Random) -> Schedule:
    """Draw a schedule of one to four faults, sometimes two at the same moment."""
    hosts = chance.randint(FEWEST, MOST)
    moments = sorted(round(chance.uniform(FIRST_S, LAST_S), 2) for _ in range(chance.randint(1, 4)))
    if len(moments) > 1 and chance.random() < 0.4:
        moments[1] = moments[0]
    faults: list[Fault] = []
    gone = 0
    for at_s in moments:
        fault = _fault(chance, at_s, hosts, may_stay_away=gone < hosts - NODES - 1)
        if any(other.host == fault.host for other in faults):
            continue  # what was done to a host is undone by its own fault: two of one host would undo each other
        gone += fault.act in FOR_GOOD and not fault.lasts_s
        faults.append(fault)
    return Schedule(hosts, chance.choice(LOADS), tuple(faults))


def _fault(chance: random.Random, at_s: float, hosts: int, *, may_stay_away: bool) -> Fault:
    act = chance.choice(ACTS)
    host = hosts - 1 if act == "late joiner" else chance.randrange(hosts)
    if act.startswith("stop"):
        span = STOPPED_S
    elif act.startswith("cut"):
        span = LINK_S
    elif act in FOR_GOOD:
        if may_stay_away and chance.random() < 0.3:
            return Fault(at_s, act, host, 0.0)
        span = AWAY_S
    elif act == "full disk":
        span = AWAY_S
    else:
        return Fault(at_s, act, host, 0.0)
    return Fault(at_s, act, host, round(chance.uniform(*span), 1))
