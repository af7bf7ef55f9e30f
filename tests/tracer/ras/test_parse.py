"""What NCCL's RAS answers becomes a report of what differs, in both of its forms; anything else becomes nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracer.ras.answers import (
    HASH,
    TEXT_BEHIND,
    TEXT_GOING,
    TEXT_SILENT,
    TEXT_WELL,
    answer,
    communicator,
    lost,
    rank,
)

from robust_run.tracer.ras.parse import parse
from robust_run.tracer.ras.types import COMMUNICATORS, ROWS, RasCommunicator, RasMissing, RasRank, RasReport


def one(content: bytes | str) -> RasCommunicator:
    report = parse(content if isinstance(content, bytes) else content.encode())
    assert report is not None
    (found,) = report.communicators
    return found


def test_ranks_that_agree_are_said_once():
    report = parse(answer(communicator(*map(rank, range(4))), timeouts=3))
    assert report is not None
    assert (report.nccl, report.form, report.timeouts) == ("2.29.7", "json", 3)
    (comm,) = report.communicators
    assert (comm.hash, comm.size, comm.answered) == (HASH, 4, 4)
    assert (comm.usual, comm.usual_state, comm.odd, comm.missing) == ((("AllReduce", 100),), "running", (), ())


def test_a_rank_with_another_count_stands_out():
    comm = one(answer(communicator(rank(0), rank(1), rank(2, {"AllReduce": 99}), rank(3))))
    assert comm.usual == (("AllReduce", 100),)
    assert comm.odd == (RasRank(2, 4002, "10.0.0.2", "running", 0, (("AllReduce", 99),)),)


def test_of_two_ranks_the_one_that_launched_less_stands_out():
    comm = one(answer(communicator(rank(0, {"AllReduce": 7}), rank(1, {"AllReduce": 8}))))
    assert (comm.usual, [row.rank for row in comm.odd]) == ((("AllReduce", 8),), [0])


@pytest.mark.parametrize(
    ("status", "state", "error"),
    [
        ({"init_state": 7}, "init", 0),
        ({"finalize_called": True}, "finalize", 0),
        ({"destroy_flag": True}, "finalize", 0),
        ({"abort_flag": True, "destroy_flag": True}, "abort", 0),
        ({"async_error": 6}, "running", 6),
        ({"init_state": 3}, "init", 3),
    ],
)
def test_what_a_rank_does_with_its_communicator_is_told(status: dict[str, int], state: str, error: int):
    comm = one(answer(communicator(rank(0), rank(1), rank(2, **status))))
    assert [(row.rank, row.state, row.error) for row in comm.odd] == [(2, state, error)]


def test_ranks_that_do_not_answer_are_missing():
    comm = one(answer(communicator(rank(0), missing=(lost(1), lost(2, unresponsive=False, dead=True)))))
    assert (comm.size, comm.answered) == (3, 1)
    assert comm.missing == (RasMissing(1, 4001, "10.0.0.2", True, False), RasMissing(2, 4002, "10.0.0.2", False, True))


def test_a_large_job_is_cut_and_what_is_odd_is_kept():
    well = [communicator(rank(0), rank(1), hash_=number) for number in range(100)]
    odd = communicator(*(rank(number, {"AllReduce": 100 + number}) for number in range(200)))
    report = parse(answer(*well, odd))
    assert report is not None
    assert (len(report.communicators), report.left_out) == (COMMUNICATORS, 101 - COMMUNICATORS)
    assert report.communicators[0].hash == HASH
    assert len(report.communicators[0].odd) == ROWS
    assert report.communicators[0].left_out == 199 - ROWS


def test_text_of_a_job_in_which_all_is_well_names_no_communicator():
    report = parse(TEXT_WELL.encode())
    assert report == RasReport(nccl="2.27.5", form="text", communicators=())


def test_text_tells_who_launched_less():
    comm = one(TEXT_BEHIND)
    assert (comm.hash, comm.size) == (HASH, 4)
    assert comm.usual == (("AllGather", 7), ("AllReduce", 100))
    assert [(row.rank, row.counts) for row in comm.odd] == [
        (2, (("AllGather", 0), ("AllReduce", 99))),
        (3, (("AllGather", 0), ("AllReduce", 100))),
    ]


def test_text_tells_who_does_not_answer_and_who_has_an_error():
    comm = one(TEXT_SILENT)
    assert comm.missing == (RasMissing(3, 4003, "10.0.0.2", True, False),)
    assert [(row.rank, row.error) for row in comm.odd] == [(1, -1)]
    report = parse(TEXT_SILENT.encode())
    assert report is not None
    assert report.timeouts == 2


def test_text_tells_who_gave_a_communicator_up():
    comm = one(TEXT_GOING)
    assert comm.usual_state == "running"
    assert [(row.rank, row.state) for row in comm.odd] == [(2, "abort")]
    assert comm.missing == (RasMissing(3, 4003, "10.0.0.2", False, False),)


def test_a_report_travels():
    report = parse(answer(communicator(rank(0), rank(1, {"AllReduce": 99}), missing=(lost(2),))))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=RasReport) == report


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        b"{}",
        b"[1]",
        b"{" * 100_000,
        b'{"communicators": 5}',
        b"\xff\xfe",
        b"OK\n{}",
        answer(communicator(rank(1 << 70))),
    ],
)
def test_anything_else_is_no_report(content: bytes):
    assert parse(content) is None


KEYS = st.sampled_from(["communicators", "ranks", "rank", "status", "hash", "size", "missing_ranks", "pid"])
VALUES = st.recursive(
    st.integers() | st.text() | st.none() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner)
)


@given(VALUES, st.sampled_from(["hash", "size", "ranks", "missing_ranks"]))
def test_json_with_anything_in_it_is_a_report_that_travels_or_nothing(value: object, key: str):
    content = msgspec.json.encode({"communicators": [communicator(rank(0)) | {key: value}]})
    report = parse(content)
    assert report is None or msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=RasReport) == report


@given(st.lists(st.sampled_from(TEXT_BEHIND.splitlines() + TEXT_SILENT.splitlines() + TEXT_GOING.splitlines())))
def test_text_in_any_order_is_a_report_that_travels(lines: list[str]):
    report = parse("\n".join(["NCCL version 2.27.5", *lines]).encode())
    assert report is not None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report), type=RasReport) == report
