"""What all check programs share: an order on stdin, one line of JSON on stdout, an end.

Every error becomes a result too. Libraries that print to stdout write to stderr instead. The program dies with its parent,
and leaves without teardown: communication libraries may hang there after an error.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from robust_run.errors import RobustRunError, UserError
from robust_run.health.checks.types import CheckName, CheckProgramOrder, Result
from robust_run.health.diagnostics.faults import Faults, faults_for
from robust_run.health.diagnostics.others import OthersWork

PR_SET_PDEATHSIG = 1
#: Variable with the pid of the process that started us: by the time we ask for our parent, it may be another.
PARENT = "ROBUST_CHECK_PARENT"
#: An order is no longer than this.
MOST_ORDER_BYTES = 16 << 20
#: Longest text of a problem or of something wrong.
LONGEST = 400

Measure = Callable[[CheckProgramOrder, Faults], Result]


class RefusedError(RobustRunError):
    """A check cannot be made here and now. The result says why."""


class UnmetError(RefusedError):
    """A check of several cannot be begun by this one of them, for a reason that has nothing to do with the others."""


class SkippedError(RobustRunError):
    """This node has nothing that this check could check."""


def main(check: CheckName, measure: Measure) -> None:
    """Run one check program: exit code 0 with a result, 2 for an order that makes no sense."""
    die_with_parent()
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        order = read_order(sys.stdin.buffer.read(MOST_ORDER_BYTES + 1), check)
    except UserError as error:
        print(f"robust_run.health.diagnostics.{check}: {error}", file=sys.stderr, flush=True)
        os._exit(2)
    result = carry_out(order, measure, lambda: faults_for(order, os.environ))
    data = msgspec.json.encode(result) + b"\n"
    while data:
        data = data[os.write(answers, data) :]
    sys.stderr.flush()
    os._exit(0)


def read_order(data: bytes, check: CheckName) -> CheckProgramOrder:
    """Return the order of a program. Raises UserError for one that is malformed or meant for another program."""
    if len(data) > MOST_ORDER_BYTES:
        raise UserError(f"the order on stdin is longer than {MOST_ORDER_BYTES} bytes")
    try:
        order = msgspec.json.decode(data, type=CheckProgramOrder)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"the order on stdin is malformed: {one_line(str(error))}") from error
    if order.check != check:
        raise UserError(f"the order on stdin is for the check {order.check!r}; this program is {check!r}")
    meeting = order.meeting
    if meeting is not None and meeting.rank >= len(meeting.nodes):
        raise UserError(f"the order's rank {meeting.rank} is beyond its {len(meeting.nodes)} ranks")
    return order


def carry_out(order: CheckProgramOrder, measure: Measure, find_faults: Callable[[], Faults]) -> Result:
    """Measure, and return the result, also of a failure."""
    started_at_s = time.monotonic()
    faults = Faults()
    try:
        faults = find_faults()
        faults.at_start()
        result = measure(order, faults)
    except SkippedError as error:
        result = blank(order, "skipped", str(error))
    except RobustRunError as error:
        result = blank(order, "failed", str(error))
        result = msgspec.structs.replace(result, unmet=isinstance(error, UnmetError))
    except Exception as error:  # of torch, of a driver, of the file system
        result = blank(order, "failed", f"{type(error).__name__}: {error}")
    return msgspec.structs.replace(
        result,
        round=order.round,
        took_s=round(time.monotonic() - started_at_s, 3),
        injected=faults.any,
        others_by_figure={} if faults.any else result.others_by_figure,  # it is to be found beside other tests
    )


def blank(order: CheckProgramOrder, outcome: str, problem: str) -> Result:
    """Return a result without a measurement."""
    return Result(
        check=order.check,
        node=order.node,
        device=order.device,
        outcome=outcome,  # type: ignore[arg-type]
        problem=one_line(problem),
        round=order.round,
    )


def one_line(text: str) -> str:
    """Return a text from anywhere as one line that a terminal may show, shortened."""
    flat = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * LONGEST]).split())
    return flat if len(flat) <= LONGEST else flat[: LONGEST - 3] + "..."


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get this signal when the thread that started us ends; leave at once if it ended before we asked for that."""
    import ctypes

    told = os.environ.get(PARENT, "")
    parent = int(told) if told.isdigit() else os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def running_s() -> float:
    """Return how long this process has been running, its start included."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0.0
    return max(time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"), 0.0)


class PassCounter:
    """Whether one more pass is to be made: at least `passes`, then as long as there is time."""

    def __init__(self, order: CheckProgramOrder) -> None:
        self._least, self._until_s = order.passes, time.monotonic() + order.seconds
        self.made = 0

    def more(self) -> bool:
        """Whether to make another pass, which is counted."""
        if self.made >= self._least and time.monotonic() >= self._until_s:
            return False
        self.made += 1
        return True


class Rate:
    """Amounts per second over passes: the mean shows a node that is throttled now and then, the best what it can do."""

    def __init__(self, others: OthersWork | None = None) -> None:
        self._passes: list[tuple[float, float]] = []
        self._others = others
        self.others_cpus: dict[str, float] = {}
        """By name, the CPUs that worked for others meanwhile: once `figures` was asked for, if it can be told."""

    def add(self, amount: float, took_s: float) -> None:
        """Count one pass."""
        self._passes.append((amount, max(took_s, 1e-9)))

    def figures(self, name: str) -> dict[str, float]:
        """Return `name` (the mean without the first pass, which opens connections and touches memory) and `best_name`.

        Ask as soon as all passes are made: until then others' work counts.
        """
        if self._others is not None:
            cpus = self._others.mean_cpus()
            self.others_cpus = {} if cpus is None else {name: cpus}
        if not self._passes:
            return {}
        counted = self._passes[1:] or self._passes
        mean = sum(amount for amount, _ in counted) / sum(took_s for _, took_s in counted)
        return {name: mean, f"best_{name}": max(amount / took_s for amount, took_s in self._passes)}
