"""Words of `plan_real.py`: a short real job, what is done to it, and what came of it."""

from __future__ import annotations

import msgspec

from robust_run.planning.course import AttemptCourse
from robust_run.planning.words import FaultKind, Mix, Spread

NODES, STANDBY = 2, 2
STEP_S = 0.1
"""A step sleeps so long; what it truly takes is measured."""
HORIZON_S = 75.0
"""A job is looked at for so long."""
BACK_S = 10.0
"""A host that lost its power is on again so long after it was missed."""
LEAD_S = 5.0
"""Nothing is done to a job that is younger: not all of its hosts have come."""
NOT_RAISED = "the rank waited in a collective until it was ended"
"""What came of an exception that no rank raised: left out on both sides."""
LONG_S = 1e7
"""What does not happen within the life of such a job."""
DAY_S = 86400.0


def per_1000_node_days(each_s: float) -> float:
    """Return the rate of what strikes a node once in so many seconds, as plans have it."""
    return 1000.0 * DAY_S / each_s


#: By name: what a plan is told of what is done here. How long it takes until the first sign of it is measured.
KINDS = {
    "killed": FaultKind(shows="crash", trouble="killed", per_1000_node_days=per_1000_node_days(170.0)),
    "input_output": FaultKind(shows="crash", trouble="storage", per_1000_node_days=per_1000_node_days(170.0)),
    "stopped": FaultKind(shows="hang", proven=1.0, per_1000_node_days=per_1000_node_days(450.0), repair=Spread(LONG_S)),
    "power": FaultKind(shows="lost", per_1000_node_days=per_1000_node_days(300.0), repair=Spread(BACK_S)),
    "update": FaultKind(shows="update", per_day=DAY_S / 220.0),
    "bad_update": FaultKind(shows="bad_update", per_day=DAY_S / 300.0),
}
MIX = Mix(faults=KINDS, lemons=0.0, misrepaired=0.0)


class Strike(msgspec.Struct, kw_only=True):
    """A fault of a job's schedule, and what came of it."""

    at_s: float
    """Since the job began."""
    name: str
    host: int
    """-1: the job as a whole."""
    came: str = ""
    """fired, or why there was nothing to strike."""
    fired_s: float | None = None
    """When it was done, since the job began."""


class RealJob(msgspec.Struct, frozen=True, kw_only=True):
    """What a job is, drawn from its number."""

    number: int
    every: int
    """It saves to storage every so many steps."""
    memory: bool = False
    """It keeps every step in memory, and on another node."""
    strikes: tuple[Strike, ...]
    is_patient: bool = False
    """A fault waits until the job trains, and the end until it trains again: what must not depend on how busy a machine is."""


class Came(msgspec.Struct, kw_only=True):
    """What came of a job. Times are seconds since it began."""

    job: RealJob
    strikes: list[Strike]
    problem: str = ""
    """What was wrong with the trial; empty: nothing."""
    until_s: float = HORIZON_S
    """It was looked at for so long."""
    ettr: float = 0.0
    """By `report.effective`, from the run directory."""
    attempts: list[AttemptCourse] = []
    actions: dict[str, int] = {}
    """Incidents, by what was done about them."""
    samples: dict[str, list[float]] = {}
    """Durations that a plan is told, by name; used from calibration jobs alone."""
    began_unix_s: float = 0.0
    took_s: float = 0.0
    load: float = 0.0
    """Load average of the machine at the end."""
