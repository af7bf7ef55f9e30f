"""The timeline is a document that Perfetto opens, and says what every rank did."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.report.gpu_tracks import ends_of
from robust_run.report.timeline import MOST_LANES, chrome_trace, chrome_trace_pieces
from robust_run.tracer.types import Group, Op, RankTrace, StepMark, StepPhases


def op(seq: int = 1, state: str = "done", at: float = 10.0, done: float | None = 10.5, **more: Any) -> Op:
    fields = {"group": "7", "op": "all_reduce", "seq": seq, "state": state, "at_s": at, "done_at_s": done}
    return Op(**{**fields, **more})


def trace(rank: int = 0, *ops: Op, marks: tuple[StepMark, ...] = (), steps: int = 0, last: float = 20.0) -> RankTrace:
    return RankTrace(
        rank=rank,
        world_size=2,
        pid=1,
        steps=steps,
        last_at_s=last,
        blocked_s=0.0,
        ops=ops,
        groups=(Group(name="7", desc="dp_1", ranks=(0, 1)),),
        marks=marks,
    )


def events(*traces: RankTrace, nodes: dict[int, str] | None = None, **more: Any) -> list[dict[str, Any]]:
    document = json.loads(chrome_trace(traces, nodes, **more))
    found: list[dict[str, Any]] = document["traceEvents"]
    obey_the_format(found)
    return found


def spans(found: list[dict[str, Any]], category: str = "communication") -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == "X" and event["cat"] == category]


def obey_the_format(found: list[dict[str, Any]]) -> None:
    """Every span has a time and a length, its process and thread have names, and spans of a track are nested or apart."""
    named = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    processes = {e["pid"] for e in found if e["name"] == "process_name"}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in found:
        assert event["ph"] in ("X", "M", "s", "f") and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and math.isfinite(event["ts"] + event["dur"])
            assert (event["pid"], event["tid"]) in named and event["pid"] in processes
            begin = round(event["ts"] * 1000)
            tracks.setdefault((event["pid"], event["tid"]), []).append((begin, begin + round(event["dur"] * 1000)))
    for between in tracks.values():
        around: list[int] = []
        for begin, end in sorted(between, key=lambda b: (b[0], -b[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or end <= around[-1]
            around.append(end)


def test_a_call_is_a_span_named_as_people_know_its_group_with_the_wait_inside() -> None:
    found = events(trace(1, op(482, waiting_at_s=10.2, numel=64, dtype="float32", site="train.py:3 main")))
    (call,), (wait,) = spans(found), spans(found, "waiting")
    assert (call["name"], call["pid"], call["ts"], call["dur"]) == ("all_reduce #482 dp_1", 1, 0.0, 500_000.0)
    assert (wait["tid"], wait["ts"], wait["dur"]) == (call["tid"], 200_000.0, 300_000.0)
    expected = {"state": "done", "group": "7", "numel": 64, "dtype": "float32", "site": "train.py:3 main"}
    assert call["args"] == expected


def test_steps_are_on_a_track_of_their_own_with_their_numbers() -> None:
    marks = (StepMark(10.0, 1.0), StepMark(10.1, 1.04), StepMark(10.3, 1.05))
    found = spans(events(trace(0, op(), marks=marks, steps=9)), "step")
    assert [(e["name"], e["args"]) for e in found] == [
        ("step 8", {"own_ms": 60.0, "waiting_for_peers_ms": 40.0}),
        ("step 9", {"own_ms": 190.0, "waiting_for_peers_ms": 10.0}),
    ]
    assert {e["tid"] for e in found} == {0}


def test_ranks_are_processes_named_with_their_nodes() -> None:
    found = events(trace(3, op()), trace(1, op()), nodes={1: "gpu-01", 3: "gpu-02"})
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == ["rank 1 (gpu-01)", "rank 3 (gpu-02)"]


def test_an_open_call_lasts_to_the_end_of_the_picture() -> None:
    found = spans(events(trace(0, op(1, "waiting", 12.0, None, waiting_at_s=12.5)), trace(1, op(at=10.0), last=30.0)))
    assert (found[0]["name"], found[0]["ts"], found[0]["dur"]) == ("all_reduce #1 dp_1 (unfinished)", 2e6, 18e6)


def test_a_call_nobody_waited_for_lasts_until_a_later_one_of_its_group_was_done() -> None:
    found = spans(events(trace(0, op(1, "issued", 10.0, None), op(2, "done", 11.0, 12.0))))
    assert [(e["name"], e["dur"], e["tid"]) for e in found] == [
        ("all_reduce #1 dp_1", 2e6, 1),
        ("all_reduce #2 dp_1", 1e6, 2),
    ]


def test_a_failed_call_says_so() -> None:
    assert spans(events(trace(0, op(1, "failed", 10.0, None))))[0]["name"] == "all_reduce #1 dp_1 (failed)"


def test_only_the_newest_calls_are_drawn_and_endless_overlap_is_cut() -> None:
    many = [op(number, at=10.0 + number, done=11.0 + number) for number in range(100)]
    assert len(spans(events(trace(0, *many), newest_ops=7))) == 7
    found = events(trace(0, *[op(number, at=10.0 + number / 100, done=19.0) for number in range(100)]))
    assert len({e["tid"] for e in spans(found)}) == MOST_LANES
    assert any(f"({100 - MOST_LANES} more left out)" in str(e["args"].get("name")) for e in found)


def arrows(found: list[dict[str, Any]]) -> list[tuple[int, int, float, float]]:
    """Return from which rank to which arrows lead, and when."""
    ends = {event["id"]: event for event in found if event["ph"] == "f"}
    assert all(event["bp"] == "e" for event in ends.values())
    return [
        (begin["pid"], ends[begin["id"]]["pid"], begin["ts"], ends[begin["id"]]["ts"])
        for begin in found
        if begin["ph"] == "s"
    ]


def test_an_arrow_leads_from_the_last_to_join_a_collective_to_who_waited() -> None:
    first, last = trace(0, op(at=10.0)), trace(1, op(at=10.3))
    assert arrows(events(first, last)) == [(1, 0, 300_000.0, 300_000.0)]
    assert arrows(events(first, trace(1, op(at=10.0005)))) == []  # nobody waited
    assert arrows(events(first, last, nodes={0: "a", 1: "b"})) == []  # clocks of two machines
    assert arrows(events(first)) == []  # who is not drawn may have been the last
    assert arrows(events(first, trace(1, op(seq=2, at=10.3)))) == []


def test_an_arrow_leads_from_a_send_to_its_receive_and_not_to_another() -> None:
    sender = trace(0, op(1, op="send", peer=1, at=10.0), op(2, op="send", peer=1, at=10.2))
    receiver = trace(1, op(2, op="recv", peer=0, at=10.1, done=10.6), op(1, op="recv", peer=0, at=9.0, tag=3))
    assert arrows(events(sender, receiver)) == [(0, 1, 1_200_000.0, 1_200_000.0)]


def phases(step: int, at: float, *lengths_ms: float) -> StepPhases:
    return StepPhases(step, at, *(lengths_ms or (10.0, 0.0, 20.0, 30.0, 5.0, 0.0)))


def test_what_the_gpu_says_of_steps_is_a_track_with_the_waiting_inside() -> None:
    one = msgspec.structs.replace(trace(0, op(at=10.0)), phases=(phases(7, 11.0),))
    found = events(one)
    drawn = [(e["name"], e["ts"], e["dur"]) for e in spans(found, "gpu") + spans(found, "waiting")]
    assert drawn == [
        ("forward", 935_000.0, 10_000.0),
        ("backward", 945_000.0, 50_000.0),
        ("rest of the step", 995_000.0, 5_000.0),
        ("waiting for peers", 965_000.0, 30_000.0),
    ]
    assert spans(found, "gpu")[1]["args"] == {"step": 7, "own_ms": 20.0, "waiting_for_peers_ms": 30.0}


def test_no_step_ends_on_the_gpu_before_the_program_has_enqueued_it() -> None:
    # The program is ahead by one step, but for the last one, for which the GPU waits.
    steps = [phases(n, at) for n, at in enumerate((10.0, 10.001, 10.066, 10.3), start=1)]
    ends = [end for _, end in ends_of(steps)]
    assert ends == pytest.approx([10.105, 10.17, 10.235, 10.3])
    gap = ends_of([phases(1, 10.0), phases(3, 10.001)])  # one in two: what is between them is not known
    assert [end for _, end in gap] == pytest.approx([10.0, 10.065])


def test_pieces_are_the_document_and_the_document_is_the_same_whatever_the_order() -> None:
    one, two = trace(0, op()), trace(1, op(at=9.0))
    assert b"".join(chrome_trace_pieces([one, two])) == chrome_trace([two, one])
    assert json.loads(chrome_trace([]))["traceEvents"] == []


_time = st.floats(0.0, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf, -1.0])
_op = st.builds(
    op,
    st.integers(0, 9),
    st.sampled_from(["entered", "issued", "waiting", "done", "failed"]),
    _time,
    st.none() | _time,
    waiting_at_s=st.none() | _time,
    thread=st.integers(0, 2),
)
_marks = st.lists(st.builds(StepMark, _time, _time), max_size=5).map(tuple)
_phases = st.lists(st.builds(phases, st.integers(0, 9), _time, *[_time] * 6), max_size=5).map(tuple)
_trace = st.builds(
    lambda rank, ops, marks, last, on_gpu: msgspec.structs.replace(
        trace(rank, *ops, marks=marks, steps=100, last=last), phases=on_gpu
    ),
    st.integers(0, 5),
    st.lists(_op, max_size=8),
    _marks,
    _time,
    _phases,
)


@given(st.lists(_trace, max_size=3, unique_by=lambda one: one.rank))
def test_whatever_rings_hold_the_document_obeys_the_format(traces: list[RankTrace]) -> None:
    assert isinstance(events(*traces), list)
