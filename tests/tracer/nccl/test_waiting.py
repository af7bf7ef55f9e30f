"""Whether a rank waits inside NCCL, seen often and cheaply, and how it came to that."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tracer.nccl.playing import ALL_GATHER, COLL, MAKE_COMM, OP, SEND, Rank, proxy_op, step_up_to, steps

from robust_run.tracer.plugin import layout, reader
from robust_run.tracer.plugin.waiting import NOTES, NOTES_AT_ONCE, NOTES_TOLD, QUIET_S, TICK_S, Waiting


def begun(rank: Rank) -> float:
    """Have an operation in flight of whose eight steps two are done; return when that was."""
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 2), f"stop {COLL}")
    event_s = rank.trace().glance.event_s
    assert event_s is not None
    while time.monotonic() < event_s + TICK_S:  # what comes next is later, as coarse as times are
        time.sleep(0.001)
    return event_s


def test_something_in_flight_that_does_not_move_is_a_wait(rank: Rank) -> None:
    event_s = begun(rank)
    waiting = Waiting(rank.path)
    assert waiting.look(event_s + QUIET_S / 2) is None, "that is no wait yet"
    assert waiting.look(event_s + 2.0) == pytest.approx(event_s)
    assert waiting.look(event_s + 9.0) == pytest.approx(event_s), "and it goes on"
    rank.play(steps(2, 4))
    later_s = rank.trace().glance.event_s
    assert later_s is not None
    assert waiting.look(later_s + 0.1) is None, "it moved"
    waiting.close()


def test_what_is_over_is_no_wait(rank: Rank) -> None:
    begun(rank)
    rank.play(steps(2, 8), f"stop {OP}")
    event_s = rank.trace().glance.event_s
    assert event_s is not None
    assert Waiting(rank.path).look(event_s + 500.0) is None


@pytest.mark.parametrize("content", [None, b"", b"RBNCCL\n\0", os.urandom(5000)])
def test_no_trace_is_no_wait(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "trace"
    if content is not None:
        path.write_bytes(content)
    waiting = Waiting(str(path))
    assert (waiting.look(1e9), waiting.event_ns, waiting.note(1e9), waiting.notes) == (None, 0, False, ())
    waiting.close()


def test_a_trace_that_is_made_later_is_found(rank: Rank, tmp_path: Path) -> None:
    moved = str(tmp_path / "later")
    waiting = Waiting(moved)
    assert waiting.look(1e9) is None
    event_s = begun(rank)
    os.rename(rank.path, moved)
    assert waiting.look(event_s + 2.0) == pytest.approx(event_s)
    waiting.close()


def test_how_a_stall_came_about_is_noted(rank: Rank) -> None:
    event_s = begun(rank)
    waiting = Waiting(rank.path)
    assert not waiting.note(event_s), "nothing is noted while all goes well"
    assert waiting.look(event_s + 2.0) is not None
    assert waiting.note(event_s + 2.1)
    rank.play(step_up_to(2, [SEND["gpu_wait"]]))
    assert waiting.note(event_s + 2.2)
    assert waiting.note(event_s + 2.3), "nothing has changed"
    first, second = waiting.notes
    assert (first.posted, first.done, first.direction) == (2, 2, "send")
    assert (second.posted, second.gpu_ready, second.done) == (3, 2, 2)
    assert (second.channel, second.peer, second.at_s) == (3, 6, pytest.approx(event_s + 2.2))
    assert not waiting.note(event_s + 9.0), "without a look that finds it waiting it comes to an end"


def test_the_notes_of_a_stall_that_is_over_are_forgotten(rank: Rank) -> None:
    event_s = begun(rank)
    waiting = Waiting(rank.path)
    waiting.look(event_s + 2.0)
    assert len(waiting.notes) == 1
    rank.play(steps(2, 4))
    later_s = rank.trace().glance.event_s
    assert later_s is not None
    waiting.look(later_s + 100.0)
    assert [note.done for note in waiting.notes] == [4]


def test_notes_are_bounded(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, *[proxy_op(100 + peer, peer=peer, steps=1000) for peer in range(60)])
    event_s = rank.trace().glance.event_s
    assert event_s is not None
    waiting = Waiting(rank.path)
    waiting.look(event_s + 2.0)
    assert len(waiting.notes) == NOTES_AT_ONCE
    time.sleep(TICK_S)  # what comes has a later time than what was looked at as if it were two seconds old
    for number in range(NOTES // NOTES_AT_ONCE + 2):
        rank.play(*[steps(number, number + 1, 100 + peer) for peer in range(60)], *step_up_to(1, [], 100))
        now_s = rank.trace().glance.event_s
        assert now_s is not None
        waiting.note(min(now_s, event_s + 2.5))  # several of these events may have the same coarse time
    assert len(waiting.notes) == NOTES_TOLD


def test_a_quick_look_says_what_a_whole_one_does(rank: Rank) -> None:
    begun(rank)
    rank.play(step_up_to(2, [SEND["gpu_wait"]]))
    descriptor = os.open(rank.path, os.O_RDONLY)
    try:
        ((key, level),) = reader.levels(descriptor).items()
        assert reader.event_ns(descriptor) / 1e9 == rank.trace().glance.event_s
    finally:
        os.close(descriptor)
    flow = rank.flow()
    assert level == (flow.posted, flow.gpu_ready, flow.transmitted, flow.done, flow.open_ops)
    assert layout.flow_key(key) == (flow.comm, False, flow.channel, flow.peer, True)
    assert reader.in_flight(rank.path)
    assert reader.communicators(rank.path) == rank.trace().communicators
    assert (reader.in_flight("nowhere"), reader.communicators("nowhere")) == (False, ())
