"""The words of a plan: the cluster, its faults, how long things take, what is switched off. No behaviour but drawing a duration.

Durations are in seconds unless a name says otherwise. A rate is per 1,000 nodes and day, or per day of the job.
"""

from __future__ import annotations

import math
import random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

#: A normal distribution has 95 % of itself below so many standard deviations.
P95_SIGMAS = 1.6449

Shows = Literal["crash", "lost", "alert", "hang", "slow", "nan", "update", "bad_update"]
"""How a job gets to know of a fault. crash: a rank ends and says why. lost: the node is silent. alert: a sensor sees it, and
nothing moves meanwhile. hang: a rank waits for a peer. slow: one node is slower than its peers. nan: numbers go wrong
unseen until they are not finite. update: people change the code. bad_update: they do, and the new code raises an exception."""

#: What `FaultKind.trouble` says of a rank that has no last words: SIGKILL ended it.
KILLED = "killed"

Seconds = Annotated[float, Meta(ge=0, le=86400 * 3650)]
Share = Annotated[float, Meta(ge=0, le=1)]
Rate = Annotated[float, Meta(ge=0, le=1000)]


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A duration that differs from time to time: log-normal, by its median and the one that 5 % exceed."""

    median: Seconds
    p95: Seconds = 0.0
    """Not above the median: it is always the median."""

    def draw(self, rng: random.Random) -> float:
        """Return one; a constant draws, too, so that other draws stay what they were."""
        by = rng.gauss(0.0, 1.0)
        if self.p95 <= self.median or not self.median:
            return self.median
        return self.median * math.exp(by * math.log(self.p95 / self.median) / P95_SIGMAS)


class FaultKind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of fault: how often, how it shows, what it leaves behind."""

    shows: Shows
    per_1000_node_days: Rate = 0.0
    per_day: Rate = 0.0
    """For what does not grow with the job: changes of its code."""
    trouble: str = ""
    """crash: what the last words of the rank say (`health.types.Trouble`); `killed`: it has none, by SIGKILL. alert: name
    of the sensor's event (docs/health.md)."""
    detect: Spread = Spread(1.0, 3.0)
    """From its onset until the first sign of it. What the core makes of signs comes on top."""
    stays: Share = 0.0
    """So many of them stay in the node until it is repaired, and show again."""
    recurs: Spread = Spread(60.0, 600.0)
    """So long after a start on such a node."""
    found: Share = 0.9
    """So many of those that stay are found by checks of the nodes, each time these are run."""
    proven: Share = 0.5
    """hang: so many are proven by the evidence, so that nothing need be waited for."""
    slowdown: Share = 0.1
    """slow: the whole job loses so much of its speed."""
    nodes: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """So many neighbours are hit at once, by one fault: a switch, a rack."""
    lasts: Spread = Spread(0.0)
    """What does not stay in a node is over after so long: until then it strikes each attempt."""
    repair: Spread | None = None
    """A node that was put out for it is back after so long; None: as all are (`Times.repair`)."""


class Mix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to a cluster."""

    faults: dict[str, FaultKind]
    lemons: Share = 0.01
    """So many nodes fail more often than others."""
    lemon_factor: Annotated[float, Meta(ge=1, le=1000)] = 10.0
    """So many times; the rates above are means over all nodes."""
    young_factor: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Parts fail more often when they are new: by (1 + factor) on the first day."""
    young_days: Annotated[float, Meta(gt=0, le=3650)] = 30.0
    """Of that, 63 % are over after so many days."""
    misrepaired: Share = 0.1
    """So many nodes come back from repair with the fault that they had."""


class Times(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long each phase of a restart takes, and what people take. See docs/plan.md for where the defaults come from."""

    end: Spread = Spread(3.0, 8.0)
    """From the order to end an attempt until the last node has ended it."""
    launch: Spread = Spread(5.0, 15.0)
    """From there until all workers run: the slowest node."""
    cold_launch: Spread = Spread(60.0, 120.0)
    """The same where nothing is warm: the first start of a job, and with `warm` switched off."""
    connect: Spread = Spread(20.0, 40.0)
    """Until the process groups of all ranks are there."""
    load_memory: Spread = Spread(8.0, 20.0)
    load_storage: Spread = Spread(90.0, 240.0)
    localise: Spread = Spread(3.0, 10.0)
    """Evidence of a hang of all ranks."""
    checks: Spread = Spread(60.0, 180.0)
    """Checks of all nodes, beyond what they measure."""
    requeue: Spread = Spread(600.0, 1200.0)
    """A job that ended is started again from nothing, by a scheduler."""
    person: Spread = Spread(1800.0, 14400.0)
    """Until somebody has seen that a job failed, or that it is slow, and knew what to do."""
    drain: Spread = Spread(300.0, 600.0)
    """Until a node that was put out of the job is taken away."""
    repair: Spread = Spread(43200.0, 259200.0)
    """Until it is back, where the fault is in the node."""
    reboot: Spread = Spread(900.0, 1800.0)
    """The same where it is not."""
    step: Annotated[float, Meta(gt=0, le=86400)] = 10.0
    """One optimizer step."""
    ask: Seconds = 0.2
    """A question to one node."""
    ask_all: Seconds = 0.5
    """A question to all nodes: which checkpoints they have."""


class Saving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the job saves, and what that costs."""

    every_s: Annotated[float, Meta(gt=0, le=86400 * 30)] = 1800.0
    blocks_s: Seconds = 2.0
    """Training stands still so long for each save to storage."""
    lag_s: Seconds = 60.0
    """It can be started from so long after it was begun."""
    memory_steps: Annotated[int, Meta(ge=0, le=1_000_000)] = 1
    """It is kept in memory, and on another node, every so many steps; 0: never."""
    memory_blocks_s: Seconds = 0.05
    """Training stands still so long for each of these."""


class Mechanisms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What robust-run does. False: what a job without it would be."""

    sensors: bool = True
    """Sensors see broken hardware. Else ranks hang on it until torch's own timeout."""
    hang_analysis: bool = True
    """Evidence names the rank that others wait for. Else they wait until torch's own timeout, and nobody is named."""
    checks: bool = True
    """Stop-time checks and the ladder (--diagnose auto)."""
    memory: bool = True
    """Checkpoints in memory, with copies on other nodes."""
    warm: bool = True
    """Warm processes on nodes, standbys included."""
    hot_update: bool = True
    """Code is changed in place. Else the job is ended and queued again."""
    rollback: bool = True
    """Code that fails at once is taken back. Else people do that."""
    restarts: bool = True
    """Restarts in the allocation. Else each failure queues the job again."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked for."""

    nodes: Annotated[int, Meta(ge=2, le=20_000)]
    gpus_per_node: Annotated[int, Meta(ge=1, le=64)] = 8
    days: Annotated[float, Meta(gt=0, le=3650)] = 90.0
    standby: Annotated[int, Meta(ge=0, le=20_000)] = 0
    mix: Mix
    times: Times = Times()
    saving: Saving = Saving()
    uses: Mechanisms = Mechanisms()
    torch_timeout_s: Annotated[float, Meta(gt=0, le=86400 * 7)] = 600.0
    """The timeout of the program's process groups."""
    wait_for_nodes_s: Seconds = 86400.0 * 7
    """So long the job waits for nodes where too few are left; then it ends, and people see to it."""
    on_slow: Literal["report", "evict"] = "report"
    price: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Of one GPU for an hour, in any currency."""
