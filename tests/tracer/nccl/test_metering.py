"""What ranks complete is read from the files that the real plugin writes, once."""

from __future__ import annotations

import time
from pathlib import Path

from tracer.nccl.playing import ALL_GATHER, COLL, MAKE_COMM, OP, Rank, StartRank, proxy_op, steps

from robust_run.tracer.plugin import layout
from robust_run.tracer.plugin.metering import Metering

WHOLE = (ALL_GATHER, proxy_op(), f"stop {COLL}", steps(0, 8), f"stop {OP}")


def test_operations_of_all_ranks_are_counted_with_what_they_sent(start_rank: StartRank, version: int) -> None:
    ranks = {number: start_rank(version) for number in (0, 1)}
    files = {number: rank.path for number, rank in ranks.items()}
    metering = Metering()
    for rank in ranks.values():
        rank.play(MAKE_COMM, *WHOLE)
    (rate,) = metering.look(files, time.monotonic())
    assert (rate.name, rate.operations, rate.received_bytes) == ("tp_3", 2, 0)
    assert rate.sent_bytes == 2 * 8 * 1024
    assert metering.look(files, time.monotonic()) == ()
    ranks[1].play(*WHOLE)
    assert [rate.operations for rate in metering.look(files, time.monotonic())] == [1]


def test_an_operation_under_way_is_counted_when_it_ends(rank: Rank) -> None:
    metering, files = Metering(), {0: rank.path}
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), f"stop {COLL}", steps(0, 4))
    assert metering.look(files, time.monotonic()) == ()
    rank.play(steps(4, 8), f"stop {OP}")
    assert [rate.operations for rate in metering.look(files, time.monotonic())] == [1]


def test_files_that_are_not_there_or_not_used_yet_say_nothing(tmp_path: Path) -> None:
    unused, garbage = tmp_path / "unused", tmp_path / "garbage"
    layout.create(str(unused))
    garbage.write_bytes(b"x" * 10_000)
    files = {0: str(unused), 1: str(garbage), 2: str(tmp_path / "none"), 3: "nul\0"}
    assert Metering().look(files, time.monotonic()) == ()
