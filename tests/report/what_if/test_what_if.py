"""What-if: what was planted in a trace is what a step would be shorter without, and nothing else is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report.what_if.pipelines import Pipelines

from robust_run.errors import UserError
from robust_run.report.what_if import from_steps, operations, reading
from robust_run.report.what_if.replay import Replay
from robust_run.report.what_if.text import lines_of
from robust_run.report.what_if.types import TracedOp


def test_a_trace_replays_to_what_was_measured() -> None:
    replay = Replay(Pipelines().play())
    assert replay.mean_s() == pytest.approx(replay.measured_s(), rel=1e-6)


@given(
    dp=st.integers(1, 3),
    pp=st.integers(1, 4),
    microbatches=st.integers(1, 5),
    factors=st.lists(st.floats(0.2, 5.0), min_size=8, max_size=8),
)
def test_any_pipeline_replays_to_what_was_measured(dp: int, pp: int, microbatches: int, factors: list[float]) -> None:
    def factor(dp: int, stage: int, step: int, kind: str) -> float:
        return factors[(3 * dp + 5 * stage + step + len(kind)) % len(factors)]

    replay = Replay(Pipelines(dp, pp, microbatches, factor=factor).play())
    assert replay.mean_s() == pytest.approx(replay.measured_s(), rel=1e-6)
    assert replay.mean_s([0.0] * len(replay.ops)) == pytest.approx(0.0, abs=1e-9)


@given(dp=st.integers(1, 2), pp=st.integers(2, 4), microbatches=st.integers(1, 5), slow=st.floats(1.0, 3.0))
def test_without_transfers_stages_still_work_one_after_the_other(
    dp: int, pp: int, microbatches: int, slow: float
) -> None:
    """Bubbles of a pipeline are no time that a trace leaves out: a slow stage costs what it does with transfers in the trace."""

    def factor(dp: int, stage: int, step: int, kind: str) -> float:
        return slow if stage == pp - 1 else 1.0

    played = Pipelines(dp, pp, microbatches, transfer_s=0.0, factor=factor).play()
    with_transfers = Replay(played)
    replay = Replay([op for op in played if not op.kind.endswith(("_send", "_recv"))])
    assert replay.mean_s() == pytest.approx(with_transfers.mean_s(), rel=1e-6)
    none_s = [0.0 if op.stage == pp - 1 else each for op, each in zip(replay.ops, replay.durations_s, strict=True)]
    same_s = [
        0.0 if op.stage == pp - 1 else each
        for op, each in zip(with_transfers.ops, with_transfers.durations_s, strict=True)
    ]
    assert replay.mean_s(none_s) == pytest.approx(with_transfers.mean_s(same_s), rel=1e-6)


def test_a_slow_rank_is_what_a_step_would_be_shorter_without() -> None:
    def slow(dp: int, stage: int, step: int, kind: str) -> float:
        return 2.0 if (dp, stage) == (1, 2) else 1.0

    found = operations.what_if(Pipelines(dp=4, factor=slow).play())
    healthy = operations.what_if(Pipelines(dp=4).play())
    first = found.ranks[0]
    assert (first.what, round(first.ratio, 2)) == ("dp 1 stage 2", 2.0)
    assert first.step_s == pytest.approx(healthy.step_s, rel=1e-6)
    assert found.ideal_s == pytest.approx(healthy.step_s, rel=1e-6)
    assert found.slowdown > 1.5 and found.slowest_share == pytest.approx(1.0)
    assert all(stage.ratio == pytest.approx(1.0) for stage in found.stage_rows), "a stage is no slow rank"
    assert found.ranks[1].step_s == pytest.approx(found.step_s), "its peers are not slow"
    lines = lines_of(found)
    assert any(line.startswith("dp 1 stage 2 as fast as its peers: ") and "2.00 times" in line for line in lines), lines


def test_a_stage_with_more_work_is_told_as_imbalance_with_its_size_and_not_as_slow_ranks() -> None:
    def heavy(dp: int, stage: int, step: int, kind: str) -> float:
        return 1.5 if stage == 3 else 1.0

    found = operations.what_if(Pipelines(factor=heavy).play())
    assert [round(stage.ratio, 2) for stage in found.stage_rows] == [1.0, 1.0, 1.0, 1.5]
    assert all(rank.ratio == pytest.approx(1.0) for rank in found.ranks)
    assert found.last_stage_share == pytest.approx(1.0)
    lines = lines_of(found)
    assert any(
        line.startswith("stage 3 has 1.50 times the work of the others (imbalance of stages, no fault")
        for line in lines
    )
    assert not any(line.startswith("dp ") for line in lines), lines


def test_a_healthy_trace_tells_nothing() -> None:
    found = operations.what_if(Pipelines().play())
    assert found.slowdown == pytest.approx(1.0) and found.slowest_share == found.last_stage_share == 0.0
    assert lines_of(found)[1:] == ["no rank, stage or kind of work stands out"]


def test_slow_transfers_are_told_as_their_kind() -> None:
    ops = Pipelines(dp=2, pp=4).play()
    late = [
        TracedOp(
            dp=op.dp, stage=op.stage, step=op.step, kind=op.kind, start_s=op.start_s, microbatch=op.microbatch,
            duration_s=op.duration_s + (0.1 if op.kind in ("backward_send", "backward_recv") and op.microbatch == 0 else 0.0),
        )
        for op in ops
    ]  # fmt: skip
    found = operations.what_if(late)
    assert found.kinds[0].what == "transfers backward"
    assert found.kinds[0].step_s < found.kinds[1].step_s == pytest.approx(found.step_s)
    assert any(line.startswith("transfers backward never longer than usual: ") for line in lines_of(found))


def test_work_that_waits_in_a_circle_is_refused() -> None:
    def op(stage: int, kind: str, start_s: float, microbatch: int) -> TracedOp:
        return TracedOp(dp=0, stage=stage, step=0, kind=kind, start_s=start_s, duration_s=1.0, microbatch=microbatch)  # type: ignore[arg-type]

    turned = [op(0, "forward_send", 0.0, 0), op(0, "forward_send", 1.0, 1), op(1, "forward_recv", 0.0, 1)]
    with pytest.raises(UserError, match="wait for each other in a circle"):
        Replay([*turned, op(1, "forward_recv", 1.0, 0)])


# --- from steps alone


def own(count: int, steps: int, slow: dict[int, float], base_ms: float = 100.0) -> dict[int, dict[int, float]]:
    return {rank: dict.fromkeys(range(1, steps + 1), base_ms * slow.get(rank, 1.0)) for rank in range(count)}


def test_steps_alone_tell_what_a_slow_rank_costs() -> None:
    found = from_steps.what_if(own(8, 20, {5: 1.5}), dict.fromkeys(range(1, 21), 160.0), [range(8)])
    assert (found.ranks[0].what, found.ranks[0].ratio) == ("rank 5", 1.5)
    assert (found.step_s, found.ranks[0].step_s, found.ideal_s) == pytest.approx((0.160, 0.110, 0.110))
    assert found.slowest_share == 1.0 and found.stage_rows == ()


def test_steps_alone_tell_an_imbalanced_stage_and_blame_none_of_its_ranks() -> None:
    times = own(8, 20, dict.fromkeys((6, 7), 1.4))
    found = from_steps.what_if(times, dict.fromkeys(range(1, 21), 150.0), [(0, 1), (2, 3), (4, 5), (6, 7)])
    assert [round(stage.ratio, 2) for stage in found.stage_rows] == [1.0, 1.0, 1.0, 1.4]
    assert found.last_stage_share == 1.0
    assert all(rank.ratio == 1.0 for rank in found.ranks)
    assert not any(line.startswith("rank ") for line in lines_of(found))


def test_saves_and_evaluations_of_one_rank_are_no_slow_rank() -> None:
    times, lengths = own(4, 100, {}), dict.fromkeys(range(1, 101), 110.0)
    for step in (50, 100):
        times[0][step], lengths[step] = 6000.0, 6010.0
    found = from_steps.what_if(times, lengths, [range(4)])
    assert (found.steps, found.left_out, found.step_s, found.ideal_s) == (
        98,
        2,
        pytest.approx(0.110),
        pytest.approx(0.110),
    )
    assert lines_of(found)[1:] == [
        "2 steps of 3 times the usual length or more (a save, an evaluation) do not count",
        "no rank, stage or kind of work stands out",
    ]
    often = {step: 110.0 if step % 5 else 600.0 for step in range(1, 101)}
    assert from_steps.what_if(own(4, 100, {}), often, [range(4)]).left_out == 0, "that is what its steps are like"


def test_a_part_of_the_ranks_is_only_told_where_there_are_many() -> None:
    for count, is_told in ((8, False), (100, True)):
        lines = lines_of(
            from_steps.what_if(own(count, 20, {5: 1.5}), dict.fromkeys(range(1, 21), 160.0), [range(count)])
        )
        assert any("the slowest 3 %" in line for line in lines) == is_told, lines


def test_too_few_steps_are_refused_with_their_number() -> None:
    with pytest.raises(UserError, match="3 steps are on record of all 2 ranks: at least 5 are needed"):
        from_steps.what_if(own(2, 3, {}), dict.fromkeys(range(1, 4), 120.0), [range(2)])
    with pytest.raises(UserError, match="at least 5"):
        from_steps.what_if({}, {}, [])


# --- files


def test_traces_are_read_as_csv_and_as_json_lines(tmp_path: Path) -> None:
    table = tmp_path / "trace.csv"
    table.write_text(
        "rank,dp_rank,stage,step,optype,start,duration,seq_id,microbatch\n"
        "0,0,1,17,forward-compute,12.5,0.25,0,3\n"
        "0,0,1,17,optimizer,12.9,0.1,1,\n"
        "0,0,1,17,grads-sync,13.0,0.5,2,\n"
    )
    lines = tmp_path / "trace.jsonl"
    lines.write_text(
        '{"dp": 0, "pp_rank": 1, "iteration": 17, "kind": "forward", "ts": 12500, "dur": 250, "mb": 3}\n\n'
        '{"dp": 0, "pp_rank": 1, "iteration": 17, "kind": "grads_sync", "ts": 13000, "dur": 500}\n'
    )
    wanted = [
        TracedOp(dp=0, stage=1, step=17, kind="forward", start_s=12.5, duration_s=0.25, microbatch=3),
        TracedOp(dp=0, stage=1, step=17, kind="grads_sync", start_s=13.0, duration_s=0.5, microbatch=-1),
    ]
    assert reading.read(str(table)) == wanted
    assert reading.read(str(lines), scale_s=1e-3) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r":2: there is no column dp_rank"),
        ("dp_rank,stage,step,optype,start,duration\n0,0,0,forward,now,1\n", r":2: could not convert"),
        ("dp_rank,stage,step,optype,start,duration\n0,0,0,forward,1,-1\n", r"no times"),
        ("dp_rank,stage,step,optype,start,duration\n0,0,0,forward,nan,1\n", r"no times"),
        ("dp_rank,stage,step,optype,start,duration\n0,0,0,dance,1,1\n", "no operation: known are backward"),
        ("", "no operation"),
        ('{"dp": 0\n', r":1: it is no JSON object"),
        ("\x00\xff\x00", "no operation|no CSV|no column"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        reading.read(str(path))
    with pytest.raises(UserError, match="No such file"):
        reading.read(str(tmp_path / "none"))
