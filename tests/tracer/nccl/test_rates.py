"""What communicators move between two looks: everything that was completed counts once, under a bounded number of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from robust_run.tracer.nccl import rates
from robust_run.tracer.nccl.rates import NAMES, OTHER, UNNAMED, CommRate, Meter, Move, Moves, Rates, Totals, bounded
from robust_run.tracer.plugin import layout, reader


def op(number: int, *, done: bool = True, comm: int = 1, **fields: Any) -> Move:
    """An operation of two flows that sent 1000 bytes in half a second; or one that is under way."""
    return Move(number, comm, 1.0, 2, 2 if done else 1, 1000, 900, 0.5)._replace(**fields)


def moves(*ops: Move, begun: int | None = None, pid: int = 7) -> Moves:
    return Moves(pid, len(ops) if begun is None else begun, {1: "dp_1", 2: ""}, ops)


def test_what_is_complete_counts_once():
    meter = Meter()
    assert meter.look(moves(op(0), op(1)), 9.0) == (CommRate("dp_1", 2, 2000, 1800, 1.0),)
    assert meter.look(moves(op(0), op(1)), 9.0) == ()
    assert meter.look(moves(op(0), op(1), op(2)), 9.0) == (CommRate("dp_1", 1, 1000, 900, 0.5),)


def test_what_is_under_way_counts_when_it_is_complete():
    meter = Meter()
    assert meter.look(moves(op(0, done=False), op(1)), 9.0) == (CommRate("dp_1", 1, 1000, 900, 0.5),)
    assert meter.wants(2) == 2, "the one under way is read again"
    assert meter.look(moves(op(0), op(1)), 9.0) == (CommRate("dp_1", 1, 1000, 900, 0.5),)
    assert meter.wants(2) == 0


def test_what_needs_no_network_counts_when_it_was_given_to_nccl_a_while_ago():
    within: dict[str, Any] = {"opened": 0, "closed": 0, "sent_bytes": 0, "received_bytes": 0, "took_s": 0.0}
    meter = Meter()
    assert meter.look(moves(op(0, **within)), 1.1) == (), "its flows may yet come"
    assert meter.look(moves(op(0, **within)), 9.0) == (CommRate("dp_1", 1, 0, 0, 0.0),)
    assert Meter().look(moves(op(0, **within | {"stopped_s": None})), 9.0) == ()


def test_a_row_that_was_being_written_counts_at_the_next_look():
    meter = Meter()
    assert meter.look(moves(op(0), begun=2), 9.0) == (CommRate("dp_1", 1, 1000, 900, 0.5),)
    assert meter.look(moves(op(0), op(1)), 9.0) == (CommRate("dp_1", 1, 1000, 900, 0.5),)


def test_another_process_begins_anew():
    meter = Meter()
    meter.look(moves(op(0), op(1)), 9.0)
    assert meter.look(moves(op(0), pid=8), 9.0) == (CommRate("dp_1", 1, 1000, 900, 0.5),)


def test_communicators_without_a_name_are_one():
    found = Meter().look(moves(op(0, comm=2), op(1, comm=99)), 9.0)
    assert found == (CommRate(UNNAMED, 2, 2000, 1800, 1.0),)


def test_what_no_operation_can_have_moved_does_not_count():
    nonsense = [op(0, sent_bytes=(1 << 64) - 1), op(1, received_bytes=1 << 60), op(2, took_s=1.8e10)]
    (rate,) = Meter().look(moves(*nonsense, op(3)), 9.0)
    assert rate == CommRate("dp_1", 1, 1000, 900, 0.5)
    assert msgspec.msgpack.encode(rate), "what cannot be sent would end the looking for good"


def test_the_busiest_are_told_apart_and_the_others_are_together():
    many = [CommRate(f"g{number}", 1, number, 0, 0.0) for number in range(NAMES + 10)]
    found = bounded([*many, CommRate(OTHER, 1, 5, 0, 0.0)])
    assert len(found) == NAMES + 1
    assert found[0].name == f"g{NAMES + 9}"
    assert found[-1] == CommRate(OTHER, 11, 5 + sum(range(10)), 0, 0.0)


def test_a_name_that_was_seen_keeps_its_row():
    totals = Totals()
    totals.add(CommRate(f"g{number}", 1, 1, 1, 0.0) for number in range(NAMES))
    totals.add([CommRate("late", 5, 7, 0, 0.0), CommRate("g0", 1, 1, 1, 0.5)])
    rows = totals.rows()
    assert len(rows) == NAMES + 1
    assert rows[0] == CommRate("g0", 2, 2, 2, 0.5)
    assert rows[-1] == CommRate(OTHER, 5, 7, 0, 0.0)


NUMBERS = st.integers(0, 1 << 40)
RATES = st.lists(st.builds(CommRate, st.text(max_size=4), NUMBERS, NUMBERS, NUMBERS, st.floats(0, 1e6)), max_size=80)


@given(st.lists(RATES, max_size=4))
def test_nothing_is_lost_and_names_stay_few(given_rates: list[list[CommRate]]):
    totals = Totals()
    for each in given_rates:
        found = bounded(each)
        assert len(found) <= NAMES + 1
        msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=Rates)
        totals.add(found)
    rows = totals.rows()
    assert len(rows) <= NAMES + 1
    assert sum(row.sent_bytes for row in rows) == sum(rate.sent_bytes for each in given_rates for rate in each)


def test_a_rank_that_has_done_much_is_read_in_bounds():
    assert Meter().wants(10**12) == rates.NEWEST <= layout.OPS


def test_an_empty_file_says_nothing(tmp_path: Path):
    path = str(tmp_path / "trace")
    layout.create(path)
    found = reader.moved(path, 5)
    assert found is not None
    assert Meter().look(found, 9.0) == ()
