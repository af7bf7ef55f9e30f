"""Whatever happens to the file, to the process or to the handles: the program goes on, and what was written stays true."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from tracer.nccl.playing import (
    ALL_GATHER,
    COLL,
    COMM,
    LIMIT_S,
    MAKE_COMM,
    OP,
    SPARE,
    STEP,
    Rank,
    StartRank,
    proxy_op,
    rungs,
    step_up_to,
    steps,
)

from robust_run.tracer.plugin import layout, reader

EVERYTHING = [MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 8), f"stop {OP}", f"stop {COLL}", f"finalize {COMM}"]


def test_killed_in_the_middle(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 3), step_up_to(3, [8, 20]))
    status, _ = rank.end("kill")
    assert status == -9
    flow = rank.flow()
    assert (rungs(flow), flow.open_ops) == ((4, 4, 3, 3), 1)


def test_read_at_any_moment_the_counters_are_in_order(rank: Rank) -> None:
    rank.play(MAKE_COMM)
    assert rank.process.stdin is not None
    give_up_s = time.monotonic() + LIMIT_S
    in_the_middle, ops, plays = 0, 0, 0
    while not in_the_middle and time.monotonic() < give_up_s:  # on a busy machine all may be over before the first look
        plays += 1
        rank.process.stdin.write("play 2 5000 0\n")
        rank.process.stdin.flush()
        while ops < 10000 * plays and time.monotonic() < give_up_s:
            trace = rank.trace()
            ops = trace.glance.ops
            in_the_middle += sum(80000 * (plays - 1) < flow.done < 80000 * plays for flow in trace.flows)
            for flow in trace.flows:
                assert flow.posted >= flow.gpu_ready >= flow.transmitted >= flow.done
            assert all(op.func == "AllReduce" and op.dtype == "float32" for op in trace.ops)
        rank.play()
    assert in_the_middle
    assert {rungs(flow) for flow in rank.trace().flows} == {(80000 * plays,) * 4}


# ---- handles


def test_nothing_is_done_with_null(rank: Rank) -> None:
    rank.play("null", MAKE_COMM, "null", f"stop {SPARE}", f"step {COMM} {STEP} {SPARE} 0")
    assert rank.ask(f"show {STEP}") == "0"
    assert rank.trace().glance.stale == 0


def test_what_is_stopped_twice_or_late_counts_once(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), step_up_to(0, [8, 20, 9]))
    rank.play(*[f"stop {STEP}"] * 3, *[f"stop {OP}"] * 3, *[f"stop {COLL}"] * 3, f"stop {STEP}", f"state {STEP} 8 1")
    flow = rank.flow()
    assert (rungs(flow), flow.open_ops) == ((1, 1, 1, 1), 0)
    assert rank.trace().glance.stale >= 8


def test_a_handle_from_before_belongs_to_nobody(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), step_up_to(0, [8]), f"stop {OP}")
    rank.play(*[proxy_op(SPARE), steps(0, 1, SPARE), f"stop {SPARE}"] * 20000)  # more than the pool has places
    before = rungs(rank.flow())
    rank.play(f"state {STEP} 9 1", f"stop {STEP}", f"stop {OP}", f"step {COMM} {STEP} {OP} 1")
    assert rungs(rank.flow()) == before == (20001, 20001, 20001, 20001)
    assert rank.ask(f"show {STEP}") == "0"


def test_an_old_handle_does_not_reach_its_successor_in_the_same_place(rank: Rank) -> None:
    pool = 16384
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), step_up_to(0, [8]), f"stop {OP}")
    rank.play(
        *[line for _ in range(pool) for line in (proxy_op(SPARE), *step_up_to(0, [8], parent=SPARE, handle=SPARE + 1))]
    )
    assert (rungs(rank.flow()), rank.flow().open_ops) == ((pool + 1, 1, 1, 1), pool)
    rank.play(f"stop {OP}", f"stop {STEP}", f"step {COMM} {STEP} {OP} 1", f"state {STEP} 8 1")
    assert (rungs(rank.flow()), rank.flow().open_ops) == ((pool + 1, 1, 1, 1), pool)


def test_an_old_step_does_not_reach_the_one_that_has_its_place(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(steps=20), step_up_to(0, [8, 20, 9]), f"stop {STEP}", steps(1, 8))
    rank.play(step_up_to(8, [8], handle=SPARE), f"state {STEP} 9 1", f"stop {STEP}")
    assert rungs(rank.flow()) == (9, 8, 8, 8)
    rank.play(f"stop {SPARE}")
    assert rungs(rank.flow()) == (9, 9, 9, 9)


def test_an_operation_whose_record_was_reused(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), f"coll {COMM} {SPARE} 1 Reduce 1 ncclInt8 0")
    rank.play(
        *[f"coll {COMM} {SPARE} 2 Broadcast 1 ncclInt8 0"] * layout.OPS, f"stop {COLL}", steps(0, 8), f"stop {OP}"
    )
    trace = reader.read(rank.path, newest=layout.OPS * 2)
    assert trace is not None
    assert len(trace.ops) == layout.OPS
    assert {(op.func, op.opened, op.stopped_s) for op in trace.ops} == {("Broadcast", 0, None)}
    assert trace.glance.ops == layout.OPS + 2


def test_operations_that_are_never_stopped_do_not_use_up_the_pool(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER)
    rank.play(*[proxy_op(SPARE), *step_up_to(0, [8], parent=SPARE)] * 20000)
    rank.play(proxy_op(channel=9), steps(0, 8))
    lost, good = rank.trace().flows
    assert rungs(good) == (8, 8, 8, 8)
    assert rank.trace().glance.dropped > 0
    assert lost.open_ops <= 16384


def test_more_flows_than_rows(rank: Rank) -> None:
    rank.play(MAKE_COMM, *[line for peer in range(20000) for line in (proxy_op(peer=peer), steps(0, 1), f"stop {OP}")])
    trace = rank.trace()
    assert 0.9 * layout.FLOWS < len(trace.flows) <= layout.FLOWS
    assert trace.glance.dropped >= 20000 - layout.FLOWS
    assert {rungs(flow) for flow in trace.flows} == {(1, 1, 1, 1)}


def test_more_communicators_than_rows(rank: Rank) -> None:
    rank.play(*[f"comm {comm} c{comm} {comm} 1 2 0" for comm in range(300)])
    assert len(rank.trace().communicators) == layout.COMMS
    assert rank.trace().glance.dropped == 300 - layout.COMMS
    rank.play("finalize 7", MAKE_COMM)
    newest = rank.trace().communicators[-1]
    assert (newest.serial % layout.COMMS, newest.closed_s) == (8, None)  # in the place of number 7, the eighth


@pytest.mark.parametrize(
    "garbage", [1, 8, 0x7FFFDEADBEEF, (1 << 64) - 1, 1 << 63, *(kind << 60 | 12345 for kind in range(1, 8))]
)
def test_garbage_for_a_handle(rank: Rank, garbage: int) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), f"raw {SPARE} {garbage}", f"context 5 {garbage}")
    rank.play(
        f"stop {SPARE}",
        f"state {SPARE} 9 1",
        "finalize 5",
        *(f"event 5 {STEP} {SPARE} {1 << bit}" for bit in range(15)),
    )
    rank.play(proxy_op(STEP, parent=SPARE), f"coll 5 {STEP} 1 AllReduce 1 ncclInt8 0")
    flows = rank.trace().flows
    assert [rungs(flow) for flow in flows if flow.channel == 3] == [(0, 0, 0, 0)]
    assert [op.func for op in rank.trace().ops][:1] == ["AllGather"]


def test_events_and_states_of_no_known_kind(rank: Rank, version: int) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), f"step {COMM} {STEP} {OP} 0")
    rank.play(*(f"state {STEP} {state} 1" for state in (-1, 0, 7, 13, 21, 22, 31, 1 << 30)))
    assert rungs(rank.flow()) == (0, 0, 0, 0)
    assert rank.trace().glance.unknown == 8
    rank.play(*(f"event {COMM} {SPARE} {COLL} {kind}" for kind in (0, 3, 1 << 40, 256, 1 << 20)))
    assert rank.ask(f"show {SPARE}") == "0"
    assert rank.trace().glance.unknown == (8 + 4 if version >= 5 else 8 + 5)


def test_strange_numbers_in_an_operation(rank: Rank) -> None:
    rank.play(
        MAKE_COMM,
        ALL_GATHER,
        f"op {COMM} {OP} {COLL} 0 255 -1 -5 77",
        f"step {COMM} {STEP} {OP} -1",
        f"state {STEP} 8 -1",
    )
    rank.play(
        f"step {COMM} {SPARE} {OP} 0x7fffffff", f"stop {SPARE}", f"coll {COMM} 20 {(1 << 64) - 1} {'x' * 99} 1 y -1"
    )
    flow = rank.flow()
    assert (flow.channel, flow.peer, flow.steps, flow.direction) == (255, -1, 0, "send")
    assert rungs(flow) == (2, 2, 2, 2)
    assert rank.trace().ops[-1].func == "x" * 15


def test_threads_that_fight_over_the_same_handles(rank: Rank) -> None:
    rank.play(MAKE_COMM, "fight 8 20000")
    for flow in rank.trace().flows:
        assert flow.posted >= flow.gpu_ready >= flow.transmitted >= flow.done
    rank.play(ALL_GATHER, proxy_op(channel=200), steps(0, 8), f"stop {OP}")
    assert [rungs(flow) for flow in rank.trace().flows if flow.channel == 200] == [(8, 8, 8, 8)]


# ---- processes


def test_the_child_of_a_fork_writes_nothing(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, "fork")
    assert rank.trace().flows == ()
    assert rank.trace().glance.ops == 1
    rank.play(proxy_op(), steps(0, 8))
    assert rungs(rank.flow()) == (8, 8, 8, 8)


def test_the_file_belongs_to_the_first_process_that_uses_it(start_rank: StartRank) -> None:
    first = start_rank()
    first.play(MAKE_COMM)
    second = start_rank(path=first.path)
    second.play(*EVERYTHING)
    assert second.ask("mask") == "0"
    assert first.trace().flows == ()
    assert first.trace().glance.pid == first.process.pid


def test_unloaded_and_called_again(rank: Rank) -> None:
    rank.play(*EVERYTHING, "unload", MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 4))
    assert [rungs(flow) for flow in rank.trace().flows] == [(8, 8, 8, 8), (4, 4, 4, 4)]


def test_a_bus_error_of_the_program_ends_it_as_ever(rank: Rank) -> None:
    rank.play(MAKE_COMM)
    status, _ = rank.end("bus")
    assert status == -7


# ---- files


def test_without_a_file_nothing_is_asked_for(start_rank: StartRank, version: int, tmp_path: Path) -> None:
    small, other = tmp_path / "small", tmp_path / "other"
    small.write_bytes(b"\0" * 100)
    layout.create(str(other))
    with other.open("r+b") as file:
        file.write(b"OTHER")
    unusable = ["", str(tmp_path / "missing"), str(tmp_path), str(small), str(other), "/dev/null"]
    for path in unusable:
        rank = start_rank(version, path=path)
        rank.play(*EVERYTHING)
        assert rank.ask("mask") == "0", path
        assert rank.ask(f"show {COLL}") == "0", path
        assert rank.end()[0] == 0, path
    assert small.read_bytes() == b"\0" * 100


def test_a_file_that_may_not_be_written(start_rank: StartRank, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    path = tmp_path / "readonly"
    layout.create(str(path))
    path.chmod(0o400)
    rank = start_rank(path=str(path))
    rank.play(*EVERYTHING)
    assert rank.ask("mask") == "0"


@pytest.mark.parametrize("size", [0, 4096, layout.FLOWS_AT + 4096])
def test_a_file_that_is_cut_short(rank: Rank, size: int) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 2))
    os.truncate(rank.path, size)
    rank.play(*EVERYTHING * 3, "play 4 100 0", "fork")
    assert rank.end(*EVERYTHING) == (0, "")
    assert os.path.getsize(rank.path) == size
    reader.read(rank.path)


def test_a_file_that_is_deleted(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 2))
    os.unlink(rank.path)
    assert reader.read(rank.path) is None
    assert rank.end(*EVERYTHING) == (0, "")


def test_a_file_of_another_takes_the_place(rank: Rank) -> None:
    rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 2))
    layout.create(rank.path)
    assert rank.end(*EVERYTHING) == (0, "")
    assert rank.trace().glance.pid == 0


def test_a_file_full_of_garbage_behind_a_good_header(start_rank: StartRank, tmp_path: Path, version: int) -> None:
    path = str(tmp_path / "garbage")
    layout.create(path)
    with open(path, "r+b") as file:
        file.seek(24)
        file.write(b"\xff" * (layout.FILE_BYTES - 24))
    rank = start_rank(version, path=path)
    rank.play(*EVERYTHING * 2, "play 4 100 0", "fight 4 1000")
    assert reader.read(path) is not None
    assert rank.end() == (0, "")


def in_full_file_system(folder: Path, script: str) -> str:
    """Run a shell script where `folder` is a file system of one mebibyte; return what it prints."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no unshare here")
    mount = f"mount -t tmpfs -o size=1m none {folder} || exit 77; {script}"
    result = subprocess.run(
        [unshare, "-m", "sh", "-c", mount], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip(f"may not mount here: {result.stderr.strip()[:100]}")
    assert result.returncode == 0, result
    return result.stdout


def test_a_full_file_system(driver: str, plugin: str, tmp_path: Path) -> None:
    commands = tmp_path / "commands"
    commands.write_text("\n".join([*EVERYTHING, "mask", ""]))
    folder = tmp_path / "small"
    folder.mkdir()
    header = tmp_path / "header"
    header.write_bytes(layout.MAGIC + layout.cell(layout.VERSION))
    script = (
        f"cp {header} {folder}/f && truncate -s {layout.FILE_BYTES} {folder}/f && "
        f"{layout.PATH_VARIABLE}={folder}/f {driver} {plugin} 6 < {commands}"
    )
    assert in_full_file_system(folder, script) == "0\n"


def test_there_must_be_room_for_a_file(tmp_path: Path) -> None:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            layout.create(str(tmp_path / "file"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "file").exists()


def in_file_system(driver: str, tmp_path: Path, options: str, then: str = "") -> tuple[str, str]:
    """Return a driver that runs where `path` lies in a file system of its own, and that path."""
    unshare = shutil.which("unshare")
    if unshare is None or os.geteuid() != 0:
        pytest.skip("needs root and unshare")
    folder, header, wrapper = tmp_path / "own", tmp_path / "header", tmp_path / "driver"
    folder.mkdir()
    header.write_bytes(layout.MAGIC + layout.cell(layout.VERSION))
    inside = (
        f"mount -t tmpfs -o {options} none {folder} && cp {header} {folder}/f && "
        f'truncate -s {layout.FILE_BYTES} {folder}/f && {then or "true"} && exec {driver} "$@"'
    )
    wrapper.write_text(f"#!/bin/sh\nexec {unshare} -m sh -c '{inside}' sh \"$@\"\n")
    wrapper.chmod(0o755)
    if subprocess.run([unshare, "-m", "mount", "-t", "tmpfs", "none", str(folder)], capture_output=True).returncode:
        pytest.skip("may not mount here")
    return str(wrapper), f"{folder}/f"


def test_a_file_system_that_is_full_by_and_by(driver: str, plugin: str, tmp_path: Path, version: int) -> None:
    wrapper, path = in_file_system(driver, tmp_path, "size=6m")
    rank = Rank(wrapper, plugin, version, path)
    try:
        rank.play(MAKE_COMM, ALL_GATHER, proxy_op(), steps(0, 2))
        seen = f"/proc/{rank.process.pid}/root{path}"
        with pytest.raises(OSError, match="No space left"), open(f"{seen}.more", "wb", buffering=0) as more:
            while True:
                more.write(bytes(4096))
        rank.play("play 4 500 0", steps(2, 8), f"stop {OP}")
        trace = reader.read(seen)
        assert trace is not None
        assert trace.glance.ops == 2001
        assert [rungs(flow) for flow in trace.flows if flow.channel == 3 and flow.peer == 6] == [(8, 8, 8, 8)]
        assert rank.end(*EVERYTHING) == (0, "")
    finally:
        rank.close()


def test_a_file_system_that_is_read_only(driver: str, plugin: str, tmp_path: Path) -> None:
    wrapper, path = in_file_system(driver, tmp_path, "size=6m", f"mount -o remount,ro {tmp_path / 'own'}")
    rank = Rank(wrapper, plugin, 6, path)
    try:
        rank.play(*EVERYTHING)
        assert rank.ask("mask") == "0"
        assert rank.end() == (0, "")
    finally:
        rank.close()
