"""What the plugin writes of a stall, read by the reader, gives the right culprit: recorded, and played now through every
version."""

from __future__ import annotations

import lzma
from pathlib import Path

import msgspec
import pytest
from tracer.nccl.playing import StartRank
from tracer.nccl.recording import RECORDED, packed, play, sight
from tracer.nccl.stalls import HELD_OUT, TUNING, Stall, run
from tracer.verdict.inside_scenes import FEWEST, on_the_way

from robust_run.tracer.nccl.cut import restored
from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.types import NcclSight
from robust_run.tracer.plugin import layout


def named(stall: Stall) -> str:
    return stall.name


@pytest.mark.parametrize("stall", RECORDED, ids=named)
def test_a_recorded_stall(stall: Stall, tmp_path: Path) -> None:
    sights = []
    for rank in range(stall.world.ranks):
        path = tmp_path / f"rank{rank}"
        path.write_bytes(lzma.decompress(packed(stall, rank).read_bytes()))
        sights.append(sight(stall, rank, str(path)))
        trace = sights[-1].trace
        assert trace is not None
        assert (trace.glance.api, trace.glance.dropped, trace.glance.stale) == (6, 0, 0)
    found = diagnose(sights)
    assert stall.is_right(found.faults), found.faults


@pytest.mark.parametrize("stall", RECORDED, ids=named)
def test_a_recorded_stall_as_it_reaches_the_controller(stall: Stall, tmp_path: Path) -> None:
    """Cut to what ranks of the largest jobs tell, and over the wire."""
    sights = []
    for rank in range(stall.world.ranks):
        path = tmp_path / f"rank{rank}"
        path.write_bytes(lzma.decompress(packed(stall, rank).read_bytes()))
        seen = sight(stall, rank, str(path))
        sights.append(msgspec.structs.replace(seen, before=seen.trace))
    told = [
        NcclSight(
            rank=of.rank,
            node=of.node,
            trace=of.nccl,
            before=None if of.nccl is None else restored(of.nccl, of.nccl_before),
            alive=of.exit_code is None,
        )
        for of in on_the_way(sights, *FEWEST)
    ]
    found = diagnose(told)
    assert stall.is_right(found.faults), found.faults


#: One of each kind, from either half, small enough to play often.
SELECTED = [
    stall
    for half in (TUNING, HELD_OUT)
    for stall in {of.broken.kind: of for of in reversed(half) if of.world.ranks <= 6}.values()
]


@pytest.mark.parametrize("stall", SELECTED, ids=named)
def test_a_stall_played_through_the_plugin(stall: Stall, version: int, start_rank: StartRank, tmp_path: Path) -> None:
    sights = []
    for rank in range(stall.world.ranks):
        path = str(tmp_path / f"{rank}.nccl")
        layout.create(path)
        process = start_rank(version, path)
        play(run(stall), rank, process, version)
        process.close()
        sights.append(sight(stall, rank, path))
    found = diagnose(sights)
    assert stall.is_right(found.faults, version), found.faults
