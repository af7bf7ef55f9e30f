"""What is kept of a fleet in which one node stands out, for tests of pages."""

from __future__ import annotations

from page_ground import BEGIN_S

from robust_run.health.sensors.usage import SAID
from robust_run.report.usage import UsagePoint, added, point_of

CLOCK = SAID.index("gpu_sm_clock_mhz")


def row(turn: int, node: int, odd: int) -> tuple[float, ...]:
    wobble = 1 + 0.01 * ((turn * 7 + node * 13) % 5 - 2)
    usage = [35.0 * wobble, 50.0 + node * 0.3, 4e6 * wobble, 6e10 * wobble, 80.0, 97.0, 64.0 + node % 4]
    usage += [
        1900 * wobble,
        560 * wobble,
        1.2e11 * wobble,
        16.0,
        0.0,
        3.0 * wobble,
        200.0,
        1e5,
        1.0,
        0.2,
        1.5 * wobble,
        2.0,
        0.0,
        0.5,
        0.0,
        0.02,
        60.0 * wobble,
    ]
    if node == odd and turn >= 12:
        usage[CLOCK], usage[CLOCK + 1] = 1250.0 * wobble, 430.0 * wobble
    return tuple(usage)


def of_nodes(count: int, odd: int = -1, name: str = "gpu-{:04d}") -> tuple[UsagePoint, ...]:
    """The clocks of one node fall after two minutes; half a minute later it is named."""
    points: tuple[UsagePoint, ...] = ()
    for turn in range(30):
        rows = {name.format(node): row(turn, node, odd) for node in range(count)}
        said = {name.format(odd): "gpu_sm_clock_mhz"} if odd >= 0 and turn >= 15 else {}
        new = point_of(BEGIN_S + 10.0 * turn, BEGIN_S + 10.0 * turn + 10.0, rows, said)
        assert new is not None
        points = added(points, new)
    return points
