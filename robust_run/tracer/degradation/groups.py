"""Whose communication is slow: calls of one group against the same calls of others like it, as all ranks' rings have them. Pure.

No two clocks are compared: of each call the rank that waited least is taken, which came last, so what it took is the transfer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from robust_run.tracer.degradation.naming import odd_group
from robust_run.tracer.degradation.words import costs_of_group
from robust_run.tracer.types import P2P, WORLD, RankTrace, TraceVerdict
from robust_run.tracer.words import ranks_words

_Kind = tuple[str, int, int]
"""Operation, elements, members: calls that should take equally long."""


def transfers_of(traces: Iterable[RankTrace]) -> dict[_Kind, dict[str, list[float]]]:
    """Return how long calls took once the last rank had come, in milliseconds, by kind of call and by group and its members."""
    least: dict[tuple[_Kind, str, tuple[int, ...], int], float] = {}
    for trace in traces:
        members = {group.name: group.ranks for group in trace.groups if group.name != WORLD}
        for op in trace.ops:
            ranks = members.get(op.group, ())
            if op.done_at_s is None or op.op in P2P or len(ranks) < 2 or op.numel <= 0:
                continue
            key = ((op.op, op.numel, len(ranks)), op.group, ranks, op.seq)
            took_ms = 1e3 * (op.done_at_s - op.at_s)
            least[key] = min(least.get(key, took_ms), took_ms)
    found: dict[_Kind, dict[str, list[float]]] = defaultdict(dict)
    for (kind, name, ranks, _), took_ms in least.items():
        found[kind].setdefault(f"{name} ({ranks_words(ranks)})", []).append(took_ms)
    return found


def with_group(verdict: TraceVerdict, traces: Iterable[RankTrace]) -> TraceVerdict:
    """Return a verdict on slow communication with the group that it is of, where one stands out among those like it."""
    kinds = transfers_of(traces)
    for kind in sorted(kinds, key=lambda kind: -kind[1]):  # the largest transfers tell most of the network
        name = odd_group(kinds[kind])
        if name:
            line = f"{kind[0]} of {kind[1]} elements takes {costs_of_group(kinds[kind], name)}"
            return msgspec.structs.replace(
                verdict,
                group=name,
                sentence=f"{verdict.sentence}; it is that of group {name}",
                evidence=(*verdict.evidence, line)[:40],
            )
    return verdict
