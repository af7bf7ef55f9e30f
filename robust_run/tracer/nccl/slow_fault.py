"""From what stays slow to the part of the machine that is: GPU, proxy thread, NIC, link or node; and in words. Pure.

A proxy thread that does not run makes wires look slow, and a slow wire does not make a GPU late: so proxy threads go first, wires
next, GPUs last. Wires to and from one rank are its NIC's, those that have a node in common the node's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from robust_run.tracer.nccl.slow_signs import Sign, Wire
from robust_run.tracer.nccl.types import EVIDENCE
from robust_run.tracer.nccl.words import ranks_of
from robust_run.tracer.nccl.work import SlowComponent, SlowFault

#: What is so many times as slow, in every window, is certain.
CERTAIN = 1.5


class Lasting(NamedTuple):
    """What stays slow in a communicator: of each thing its signs, window after window."""

    comm: str
    wires: Mapping[Wire, tuple[Sign, ...]]
    gpus: Mapping[int, tuple[Sign, ...]]
    proxies: Mapping[int, tuple[Sign, ...]]
    period_s: float


def told(lasting: Sequence[Lasting], nodes: Mapping[int, str]) -> SlowFault | None:
    """Return what is slow. `nodes`: of all ranks. None: nothing is."""
    if any(of.proxies for of in lasting):
        return _of_ranks("proxy", [(of, of.proxies) for of in lasting if of.proxies], nodes)
    if any(of.wires for of in lasting):
        return _of_wires(lasting, nodes)
    if any(of.gpus for of in lasting):
        return _of_ranks("gpu", [(of, of.gpus) for of in lasting if of.gpus], nodes)
    return None


def _of_ranks(
    component: SlowComponent, found: Sequence[tuple[Lasting, Mapping[int, tuple[Sign, ...]]]], nodes: Mapping[int, str]
) -> SlowFault:
    """Return the fault of ranks: of a node where all its two or more ranks have it, else of the one that costs most."""
    costs = {rank: max(_cost(of, signs[rank]) for of, signs in found if rank in signs) for _, s in found for rank in s}
    worst = max(costs, key=lambda rank: costs[rank])
    mates = [rank for rank, node in nodes.items() if node == nodes[worst]]
    is_node = len(mates) > 1 and all(rank in costs for rank in mates)
    ranks = tuple(sorted(mates)) if is_node else (worst,)
    of, signs = max((pair for pair in found if worst in pair[1]), key=lambda pair: _cost(pair[0], pair[1][worst]))
    lines = [sign.words for _, s in found for rank in ranks if rank in s for sign in s[rank][-1:]]
    what = "come late to their operations" if component == "gpu" else "have proxy threads that do not run"
    if is_node:
        who = f"all {len(ranks)} ranks of {nodes[worst]} ({ranks_of(ranks)}) {what}: the node, or what it waits for"
    elif component == "gpu":
        who = f"the GPU of rank {worst} ({nodes[worst]}) comes late to its operations, or is slow in them"
    else:
        who = f"the proxy thread of rank {worst} ({nodes[worst]}) does not run when it should"
    return _fault("node" if is_node else component, ranks, nodes, of, signs[worst], who, lines)


def _of_wires(lasting: Sequence[Lasting], nodes: Mapping[int, str]) -> SlowFault:
    """Return the fault of wires: of what they have in common."""
    found = {wire: (of, signs) for of in lasting for wire, signs in of.wires.items()}
    costs = {wire: _cost(*entry) for wire, entry in found.items()}
    worst = max(costs, key=lambda wire: costs[wire])
    of, signs = found[worst]
    lines = [entry[1][-1].words for entry in found.values()]
    ends = [end for wire in found for end in wire]
    common = {
        end: ends.count(end)
        for end in ends
        if any(w.sender == end for w in found) and any(w.receiver == end for w in found)
    }
    on_node = {
        node: {end for wire in found for end in wire if nodes[end] == node} for node in {nodes[end] for end in ends}
    }
    everywhere = [
        n for n in on_node if all(n in (nodes[w.sender], nodes[w.receiver]) for w in found) and len(on_node[n]) > 1
    ]
    if len(everywhere) == 1 and len({of.comm for of in lasting if of.wires}) > 1:
        ranks = tuple(sorted(on_node[everywhere[0]]))
        who = f"all that {everywhere[0]} ({ranks_of(ranks)}) sends or receives is slow"
        return _fault("node", ranks, nodes, of, signs, who, lines)
    most = max(common.values(), default=0)
    tops = [rank for rank, count in common.items() if count == most]
    if len(tops) == 1:
        who = f"all that rank {tops[0]} ({nodes[tops[0]]}) sends and receives is slow: its NIC, or the way to it within the node"
        return _fault("nic", (tops[0],), nodes, of, signs, who, lines)
    if worst.back in found and len(found) == 2 and len(of.wires) == 2:  # in a group of two nodes
        both = " and ".join(f"rank {rank} ({nodes[rank]})" for rank in sorted(worst))
        who = f"the way between {both} is slow in both directions: the NIC of one of the two, or what is between them"
        return _fault("link", tuple(sorted(worst)), nodes, of, signs, who, lines)
    who = f"the way from rank {worst.sender} ({nodes[worst.sender]}) to rank {worst.receiver} ({nodes[worst.receiver]}) is slow"
    return _fault("link", (worst.sender, worst.receiver), nodes, of, signs, who, lines)


def _fault(
    component: SlowComponent,
    ranks: tuple[int, ...],
    nodes: Mapping[int, str],
    of: Lasting,
    signs: Sequence[Sign],
    who: str,
    lines: Sequence[str],
) -> SlowFault:
    share = min(1.0, _cost(of, signs))
    return SlowFault(
        component=component,
        ranks=ranks,
        nodes=tuple(dict.fromkeys(nodes[rank] for rank in ranks)),
        comm=of.comm,
        share=share,
        confidence="high" if all(sign.times >= CERTAIN for sign in signs) and component != "proxy" else "medium",
        sentence=f"{who}: {signs[-1].words}; it costs {share:.0%} of the time between two operations of {of.comm}",
        evidence=tuple(dict.fromkeys(lines))[:EVIDENCE],
    )


def _cost(of: Lasting, signs: Sequence[Sign]) -> float:
    """Return the part of the time between two operations that something costs."""
    return median(sign.cost_s for sign in signs) / of.period_s if of.period_s else 0.0
