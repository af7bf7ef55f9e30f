"""NICs of a node compared over half a second or several, in slices of 10 ms: one that is silent, moves less, or fluctuates where
its peers do not and it did not (MegaScale, arXiv 2402.15627, section 5.2). Pure. Nobody is accused: it is evidence beside other
evidence. What a NIC and its peers moved is drawn into its line, so that it is seen wherever evidence is shown.

Training moves data in bursts of its own, so a slice says nothing alone: all is against the other NICs in the same half second,
and against the same comparison before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median, pstdev

import msgspec

#: Peers that must move this much for their silent neighbour to be news.
LEAST_BYTES_PER_S = 10e6
#: A NIC is silent that moves less than this share of what its peers do, and moves less with less than that share.
SILENT, LESS = 0.001, 0.6
#: It fluctuates with a variation so many times that of its peers, and of its own before.
FLUCTUATES = 2.0
#: Slices that are needed to say so.
FEWEST = 20
#: Of what is drawn, in characters; the first is for nothing at all.
WIDTH, _HEIGHTS = 24, "·▁▂▃▄▅▆▇█"


class NicBurst(msgspec.Struct, frozen=True, kw_only=True):
    """What the NICs of a node moved."""

    length_s: float
    moved: Mapping[str, tuple[int, ...]]
    """Bytes, by slice."""
    marks: Mapping[str, int] = {}
    """Marks of congestion and moments of waiting to send, where they are counted."""


def joined(bursts: Sequence[NicBurst]) -> NicBurst:
    """Return several bursts as one: of the NICs that are in each of them."""
    names = [name for name in bursts[-1].moved if all(name in burst.moved for burst in bursts)]
    return NicBurst(
        length_s=sum(burst.length_s for burst in bursts),
        moved={name: tuple(count for burst in bursts for count in burst.moved[name]) for name in names},
        marks={name: sum(burst.marks.get(name, 0) for burst in bursts) for name in names},
    )


def judge(now: NicBurst, past: NicBurst | None) -> tuple[str, ...]:
    """Return a line for each NIC that is unlike its peers as it was not before. `past`: None: not known, and nothing is."""
    if past is None or now.length_s <= 0:
        return ()
    lines = []
    for name, slices in now.moved.items():
        peers = [other for other in now.moved if other != name and sum(now.moved[other]) > 0]
        if name not in past.moved or not peers or min(len(slices), len(past.moved[name])) < FEWEST:
            continue
        others = median(sum(now.moved[other]) for other in peers)
        if others / now.length_s >= LEAST_BYTES_PER_S and (line := _line(name, now, past, peers, others)):
            lines.append(line + _marked(name, now, past) + _drawn(name, now, peers))
    return tuple(lines)


def _line(name: str, now: NicBurst, past: NicBurst, peers: list[str], others: float) -> str:
    mine, before = sum(now.moved[name]), _share(name, past)
    if before <= SILENT:  # it is not in use
        return ""
    if mine < SILENT * others:
        return f"NIC {name} moves nothing, its peers {others / now.length_s / 1e6:.0f} MB/s"
    said = []
    if mine < LESS * others and mine < LESS * before * others:
        said.append(f"moves {mine / others:.0%} of what its peers do, {before:.0%} before")
    varied, usual = _variation(now.moved[name]), median(_variation(now.moved[other]) for other in peers)
    if varied > FLUCTUATES * max(usual, _variation(past.moved[name]), 0.1):
        said.append(f"fluctuates: by {varied:.0%} from slice to slice, its peers by {usual:.0%}")
    return f"NIC {name} {', and '.join(said)}" if said else ""


def _drawn(name: str, now: NicBurst, peers: Sequence[str]) -> str:
    """Return what a NIC moved, slice by slice, and the median of its peers below the same top."""
    mine = _coarse(now.moved[name])
    others = [median(of) for of in zip(*(_coarse(now.moved[other]) for other in peers), strict=False)]
    top = max((*mine, *others))
    return f" ({_bars(mine, top)}, its peers {_bars(others, top)})"


def _coarse(slices: Sequence[int]) -> list[float]:
    """Return the means of as many parts of the slices as are drawn."""
    width = min(WIDTH, len(slices))
    parts = [slices[place * len(slices) // width : (place + 1) * len(slices) // width] for place in range(width)]
    return [fmean(part) for part in parts]


def _bars(values: Sequence[float], top: float) -> str:
    most = len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[min(most, math.ceil(value / top * most)) if top else 0] for value in values)


def _share(name: str, burst: NicBurst) -> float:
    """Return how much a NIC moved, against its peers."""
    peers = [sum(slices) for other, slices in burst.moved.items() if other != name and sum(slices) > 0]
    return sum(burst.moved[name]) / median(peers) if peers else 0.0


def _variation(slices: tuple[int, ...]) -> float:
    mean = fmean(slices)
    return pstdev(slices) / mean if mean else 0.0


def _marked(name: str, now: NicBurst, past: NicBurst) -> str:
    count, before = now.marks.get(name, 0), past.marks.get(name, 0)
    return f"; {count} marks of congestion, {before} before" if count > 2 * before else ""
