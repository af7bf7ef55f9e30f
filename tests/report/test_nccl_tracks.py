"""NCCL's operations in a timeline: what each communicator of a rank did, and what it is still in."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tracer.nccl.simulate import Broken, Model, trace_of
from tracer.nccl.stalls import one_group

from robust_run.report.nccl_tracks import FIRST_TRACK, MOST_LANES, NcclTracks
from robust_run.report.timeline import chrome_trace
from robust_run.tracer.nccl.types import Communicator, NcclGlance, NcclOp, NcclTrace
from robust_run.tracer.types import RankTrace

GLANCE = NcclGlance(pid=1, api=6, communicators=1, ops=0, event_s=3.0, dropped=0, foreign=0, unknown=0, stale=0)
COMM = Communicator(serial=1, hash=7, name="dp_0", rank=0, ranks=2, nodes=2, opened_s=0.0, closed_s=None)


def op(number: int, first: float | None, last: float | None, **more: Any) -> NcclOp:
    fields: dict[str, Any] = {
        "number": number, "comm": 1, "kind": "collective", "func": "AllReduce", "seq": number, "count": 8, "dtype": "float32",
        "peer": 0, "started_s": 100.0 + number, "stopped_s": 100.0 + number, "proxy_first_s": first, "proxy_last_s": last,
        "opened": 2, "closed": 0 if last is None else 2, "sent_bytes": 4, "received_bytes": 0, "kernel_first_s": None,
        "kernel_last_s": None,
    }  # fmt: skip
    return NcclOp(**{**fields, **more})


def drawn(*ops: NcclOp, traces: tuple[RankTrace, ...] = (), **more: Any) -> list[dict[str, Any]]:
    trace = NcclTrace(glance=GLANCE, communicators=(COMM,), flows=(), ops=ops)
    document = json.loads(chrome_trace(traces, inside=[NcclTracks(rank=3, trace=trace, **more)]))
    found: list[dict[str, Any]] = document["traceEvents"]
    return found


def spans(found: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    return [(event["name"], event["ts"], event["dur"]) for event in found if event["ph"] == "X"]


def test_an_operation_lasts_from_its_first_connection_to_its_last() -> None:
    found = drawn(op(0, 101.0, 102.5), op(1, 103.0, 103.5))
    assert spans(found) == [("all_reduce #0 dp_0", 1e6, 1.5e6), ("all_reduce #1 dp_0", 3e6, 0.5e6)]
    assert {event["tid"] for event in found if event["ph"] == "X"} == {FIRST_TRACK}
    names = {event["name"]: event["args"] for event in found if event["ph"] == "M"}
    assert names["thread_name"] == {"name": "NCCL dp_0"}
    assert names["process_name"] == {"name": "rank 3"}, "a rank may have no ring"


def test_one_that_is_not_over_lasts_to_the_end() -> None:
    found = drawn(op(0, 101.0, None), op(1, 103.0, 109.0))
    assert spans(found)[0] == ("all_reduce #0 dp_0 (unfinished)", 1e6, 8e6)


def test_what_overlaps_has_a_track_of_its_own_up_to_a_number() -> None:
    found = drawn(*(op(number, 105.0, 106.0) for number in range(MOST_LANES + 3)))
    assert len(spans(found)) == MOST_LANES
    assert len({event["tid"] for event in found if event["ph"] == "X"}) == MOST_LANES


def test_names_and_clocks_of_others_are_used() -> None:
    found = drawn(op(0, 101.0, 102.0), op(1, 103.0, 104.0), names={7: "tp_3"}, shift_s=50.0)
    assert [name for name, _, _ in spans(found)] == ["all_reduce #0 tp_3", "all_reduce #1 tp_3"]


def test_a_stall_of_the_model_can_be_drawn() -> None:
    model = Model(one_group(3, "ring", 12, 2), Broken("gpu", 1, 2, 4), 1)
    assert not model.run()
    inside = [NcclTracks(rank=rank, trace=trace_of(model, rank)) for rank in range(3)]
    found = json.loads(chrome_trace((), inside=inside))["traceEvents"]
    unfinished = [event for event in found if event["name"] == "all_reduce #1202 dp_0 (unfinished)"]
    assert {event["pid"] for event in unfinished} == {0, 1, 2}
    assert all(event["args"]["connections_in_flight"] for event in unfinished)


TIME = st.one_of(st.none(), st.floats(), st.floats(90.0, 120.0))


@given(st.lists(st.tuples(st.floats(), TIME, TIME, TIME, st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_whatever_a_trace_holds_spans_of_a_track_do_not_overlap(rows: list[Any]) -> None:
    ops = [
        op(number, first, last, started_s=started, stopped_s=stopped, opened=opened, closed=closed)
        for number, (started, stopped, first, last, opened, closed) in enumerate(rows)
    ]
    tracks: dict[int, list[tuple[int, int]]] = {}
    for event in drawn(*ops):
        if event["ph"] == "X":
            begin, length = round(event["ts"] * 1000), round(event["dur"] * 1000)
            assert begin >= 0 and length >= 0
            tracks.setdefault(event["tid"], []).append((begin, begin + length))
    for between in tracks.values():
        ordered = sorted(between)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))
