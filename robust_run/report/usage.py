"""How full and busy nodes were, over the life of a job: a history of bounded size that is thinned with age. Pure.

A point stands for a stretch of time, and each of its numbers for all nodes: the lowest, the median and the highest with the names
of the nodes that have them, and each node's own where there are few. The older two neighbours are, the sooner they become one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from robust_run.health.sensors.usage import SAID

SCHEMA = 1
#: Points that are kept: some 10 s apart while a job is young, and at most a twentieth of their age when it is old.
MOST_POINTS = 240
#: Up to so many nodes have a line of their own.
FEW_NODES = 8
#: What the longest history takes as JSON: `MOST_POINTS` of `FEW_NODES` nodes with long names.
LARGEST_BYTES = 2 << 20
_LONGEST_NAME = 40
#: No number of ours is larger.
_MOST = 1e15

KEPT = ("memory_used_percent", "gpu_memory_percent", "gpu_busy_percent", "gpu_celsius", "cpu_percent")
"""Those that are kept, in the order in which they are drawn."""
COMPARED = tuple(name for name in SAID if name not in KEPT)
"""Other numbers by which nodes are compared: of these the extremes, the median, and the nodes that stand out."""
MOST_ODD = 2
"""So many nodes that stand out have their own line."""
_PEAKS = frozenset(("memory_used_percent", "gpu_memory_percent", "gpu_celsius"))
"""Of these a node's highest is kept when points become one; of others its mean."""


class NodeSpread(msgspec.Struct, frozen=True, array_like=True):
    """One number of all nodes."""

    low: float
    middle: float
    """The median of nodes."""
    high: float
    low_node: str = ""
    high_node: str = ""
    nodes: Mapping[str, float] = {}
    """By node; empty where there are more than `FEW_NODES`."""


class UsagePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What nodes did in a stretch of time."""

    begin_s: float
    """Seconds since the epoch."""
    end_s: float
    spreads: Mapping[str, NodeSpread]
    """By the name of the number."""
    odd: Mapping[str, str] = {}
    """Nodes that stood out from their peers, at most `MOST_ODD`, and by which number."""


class UsageHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept, oldest first."""

    schema: int = SCHEMA
    points: tuple[UsagePoint, ...] = ()


def point_of(
    begin_s: float, end_s: float, rows: Mapping[str, Sequence[float]], odd: Mapping[str, str] | None = None
) -> UsagePoint | None:
    """Return what nodes said of a stretch of time, by node in the order of `SAID`; None: nothing that is kept.

    `odd`: nodes that stand out, and by which number.
    """
    odd = dict(sorted((odd or {}).items())[:MOST_ODD])
    spreads = {}
    for name in (*KEPT, *COMPARED):
        index = SAID.index(name)
        said = {node: row[index] for node, row in rows.items() if len(row) > index and _is_number(row[index])}
        if said:
            spreads[name] = _spread(said, said if name in KEPT and len(said) <= FEW_NODES else odd)
    begin_s, end_s = round(begin_s, 1), round(end_s, 1)
    if not spreads or end_s <= begin_s:
        return None
    named = {node[:_LONGEST_NAME]: metric for node, metric in odd.items()}
    return UsagePoint(begin_s=begin_s, end_s=end_s, spreads=spreads, odd=named)


def _is_number(value: float) -> bool:
    return math.isfinite(value) and 0.0 <= value <= _MOST


def _spread(said: Mapping[str, float], lines: Iterable[str]) -> NodeSpread:
    low_node, high_node = min(said, key=said.__getitem__), max(said, key=said.__getitem__)
    return NodeSpread(
        _short(said[low_node]),
        _short(sorted(said.values())[(len(said) - 1) // 2]),
        _short(said[high_node]),
        low_node[:_LONGEST_NAME],
        high_node[:_LONGEST_NAME],
        {node[:_LONGEST_NAME]: _short(said[node]) for node in lines if node in said},
    )


def added(points: Sequence[UsagePoint], new: UsagePoint, most: int = MOST_POINTS) -> tuple[UsagePoint, ...]:
    """Return the history with a point more: at most `most`, in order of time.

    A clock that was set back makes points of later than now untrue; they are forgotten.
    """
    kept = [point for point in points if point.begin_s < new.begin_s]
    begin_s = max(new.begin_s, kept[-1].end_s) if kept else new.begin_s
    if begin_s >= new.end_s:
        return tuple(kept)
    kept.append(msgspec.structs.replace(new, begin_s=begin_s))
    while len(kept) > max(most, 1):
        index = min(range(len(kept) - 1), key=lambda at: _share_of_age(kept, at))
        kept[index : index + 2] = [_one_of(kept[index], kept[index + 1])]
    return tuple(kept)


def _share_of_age(points: Sequence[UsagePoint], index: int) -> float:
    """Return how long two neighbours would be as one, by how long ago they began: the least is missed the least."""
    begin_s = points[index].begin_s
    return (points[index + 1].end_s - begin_s) / (points[-1].end_s - begin_s)


def _one_of(first: UsagePoint, second: UsagePoint) -> UsagePoint:
    names = [name for name in (*KEPT, *COMPARED) if name in first.spreads or name in second.spreads]
    share = _share(first, second)
    spreads = {name: _both(name, first.spreads.get(name), second.spreads.get(name), share) for name in names}
    return UsagePoint(
        begin_s=first.begin_s,
        end_s=second.end_s,
        spreads={name: each for name, each in spreads.items() if each},
        odd=dict(list({**second.odd, **first.odd}.items())[:MOST_ODD]),
    )


def _share(first: UsagePoint, second: UsagePoint) -> float:
    one, other = first.end_s - first.begin_s, second.end_s - second.begin_s
    return one / (one + other)


def _both(name: str, one: NodeSpread | None, other: NodeSpread | None, share: float) -> NodeSpread | None:
    if one is None or other is None:
        return one or other

    def together(left: float, right: float) -> float:
        return max(left, right) if name in _PEAKS else _short(left * share + right * (1.0 - share))

    hosts = list(dict.fromkeys((*one.nodes, *other.nodes)))
    is_few = len(hosts) <= FEW_NODES and (name in COMPARED or bool(one.nodes and other.nodes))
    nodes = {
        host: together(one.nodes.get(host, other.nodes.get(host, 0.0)), other.nodes.get(host, one.nodes.get(host, 0.0)))
        for host in (hosts if is_few else ())
    }
    return NodeSpread(
        min(one.low, other.low),
        _short(one.middle * share + other.middle * (1.0 - share)),
        max(one.high, other.high),
        one.low_node if one.low <= other.low else other.low_node,
        one.high_node if one.high >= other.high else other.high_node,
        nodes,
    )


def _short(value: float) -> float:
    """Four digits are more than a picture shows."""
    return float(f"{value:.4g}")
