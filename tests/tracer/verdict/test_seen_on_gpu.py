"""Stalls of a real NCCL as a job saw them: two ranks on one GPU (tests/gpu), NCCL 2.28.9 over sockets, torch 2.11.

What NCCL does there no model had: sockets take and deliver the first half of what a ring of two sends although the other rank has
not come, so that the GPU of the rank that waits seems to keep the second half back.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import msgspec
import pytest

from robust_run.report.files.incident import read_scene
from robust_run.tracer.nccl.rules import diagnose
from robust_run.tracer.nccl.types import NcclSight
from robust_run.tracer.plugin.reader import read
from robust_run.tracer.types import Scene, TraceVerdict
from robust_run.tracer.verdict.decide import look
from robust_run.tracer.verdict.inside import NcclScene
from robust_run.tracer.verdict.types import RankPatience

SEEN = Path(__file__).with_name("seen_on_gpu")


@pytest.fixture
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    path = tmp_path / "scene.json"
    path.write_bytes(lzma.decompress((SEEN / f"{request.param}.scene.json.xz").read_bytes()))
    return read_scene(str(path))


def verdict_of(scene: Scene) -> TraceVerdict:
    found = look(scene, RankPatience(after_s=5.0)).verdict
    assert found is not None
    return found


@pytest.mark.parametrize("scene", ["asleep", "burns", "kernel"], indirect=True)
def test_the_rank_that_has_not_come_is_named_and_not_the_gpu_that_waits_for_it(scene: Scene) -> None:
    inside = NcclScene.of(scene, (), lambda group: group.name, failed=False)
    assert inside is not None
    assert [(fault.kind, fault.ranks) for fault in inside.diagnosis.faults] == [("late", (1,))]
    verdict = verdict_of(scene)
    assert (verdict.kind, verdict.ranks, verdict.confidence) == ("hang", (1,), "high"), verdict.sentence


@pytest.mark.parametrize("scene", ["unlike_calls"], indirect=True)
def test_calls_that_have_returned_are_compared_while_the_gpu_is_in_them(scene: Scene) -> None:
    verdict = verdict_of(scene)
    assert verdict.kind == "mismatch", verdict.sentence
    assert "broadcast" in verdict.sentence and "all_reduce" in verdict.sentence
    assert not verdict.proven, "their threads run: they ask the GPU again and again"


def test_a_rank_that_is_slow_in_every_step_is_the_straggler(tmp_path: Path) -> None:
    """What the plugin wrote of rank 1 sleeping 1.3 s in each step: NCCL knows it by when calls are made."""
    sights = []
    for rank in (0, 1):
        path = tmp_path / f"rank{rank}.nccl"
        path.write_bytes(lzma.decompress((SEEN / f"slow.rank{rank}.nccl.xz").read_bytes()))
        trace = read(str(path))
        assert trace is not None
        assert (trace.glance.api, trace.glance.dropped, trace.glance.stale) == (5, 0, 0)
        assert {op.algorithm for op in trace.ops} == {"ring"}
        sights.append(NcclSight(rank=rank, node=f"gpu-{rank}", trace=trace))
    (fault,) = [fault for fault in diagnose(sights).faults if fault.kind == "straggler"]
    assert (fault.ranks, fault.waiting, fault.rule) == ((1,), (0,), "last-start")
    assert "later than its peer, by 1.3 s" in fault.sentence


@pytest.mark.parametrize("scene", ["unlike_calls"], indirect=True)
def test_calls_that_the_gpu_is_done_with_are_over(scene: Scene) -> None:
    """What went through went through: gather and scatter of uneven parts, or a mistake that NCCL let pass."""
    done = [
        msgspec.structs.replace(
            sight, recorded=tuple(msgspec.structs.replace(op, state="done") for op in sight.recorded)
        )
        for sight in scene.ranks
    ]
    verdict = look(msgspec.structs.replace(scene, ranks=tuple(done)), RankPatience(after_s=5.0)).verdict
    assert verdict is None or verdict.kind != "mismatch"
