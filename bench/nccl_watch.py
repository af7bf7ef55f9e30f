"""What watching NCCL costs an agent: reads of the ranks' traces while training goes on, and while a stall is forming.

    python bench/nccl_watch.py [--ranks 8] [--flows 128] [--ops 600]

Traces are made by playing operations to the plugin (tests/tracer/nccl/driver.c). CPU time of the process, per second of training.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from tracer.nccl.playing import Rank, compile_driver  # noqa: E402

from robust_run.clock import SystemClock  # noqa: E402
from robust_run.harmless import Harmless  # noqa: E402
from robust_run.launcher.agent.nccl.watch import NcclWatch  # noqa: E402
from robust_run.tracer.nccl.sampling import WINDOW_S  # noqa: E402
from robust_run.tracer.nccl.slowness import WINDOW_S as SHORT_S  # noqa: E402
from robust_run.tracer.plugin import build, layout, reader  # noqa: E402
from robust_run.tracer.plugin.waiting import NOTE_S  # noqa: E402
from robust_run.tracer.suspicion import LOOK_S  # noqa: E402

REPEATS = 400


def make(folder: str, ranks: int, flows: int, ops: int) -> dict[int, str]:
    """Make the traces of some ranks, with so many connections and operations, the newest of which is in flight."""
    plugin = build.ensure(f"{folder}/cache")
    assert plugin.path, plugin.reason
    assert compile_driver("cc", f"{folder}/driver") == ""
    paths = {rank: f"{folder}/{rank}{layout.SUFFIX}" for rank in range(ranks)}
    for rank, path in paths.items():
        layout.create(path)
        process = Rank(f"{folder}/driver", plugin.path, 6, path)
        lines = [f"comm 0 dp_{rank} {77 + rank} 2 16 0"]  # each is of another group, so that all are sampled
        for number in range(ops):
            lines += [f"coll 0 1 {number} AllReduce 4096 ncclFloat32 0", "stop 1"]
            wide = flows if number in (0, ops - 1) else 4
            for place in range(wide):
                lines.append(f"op 0 {100 + place} 1 0 {place // 2 % 64} {1 + place // 128} 8 {place % 2}")
            last = 4 if number == ops - 1 else 8
            lines += [f"steps 0 {100 + place} 0 {last} {place % 2}" for place in range(wide)]
            lines += [] if number == ops - 1 else [f"stop {100 + place}" for place in range(wide)]
        process.play(lines)
        process.close()
    return paths


def touch(path: str, at_s: float) -> None:
    """Let something have happened in a rank at a time."""
    descriptor = os.open(path, os.O_WRONLY)
    os.pwrite(descriptor, layout.cell(int(at_s * 1e9)), layout.EVENT_CELL * 8)
    os.close(descriptor)


def cpu_us(what: Callable[[], object], repeats: int) -> float:
    """CPU time of a call, in microseconds."""
    before = time.process_time()
    for _ in range(repeats):
        what()
    return (time.process_time() - before) / repeats * 1e6


def main() -> None:
    """Measure, and say what it comes to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--flows", type=int, default=128)
    parser.add_argument("--ops", type=int, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        paths = make(folder, options.ranks, options.flows, options.ops)
        now_s = time.monotonic()
        watch = NcclWatch(
            attempt=0, node="", world_size=16 * options.ranks, paths=paths, after_s=5.0, clock=SystemClock(),
            report=lambda _: None, harmless=Harmless("measuring", print),
        )  # fmt: skip

        def look(at_s: float) -> None:
            for rank in paths:
                watch.look(rank, at_s)

        for path in paths.values():
            touch(path, now_s)
        training = cpu_us(lambda: look(now_s + 0.5), REPEATS)
        stalled = cpu_us(lambda: look(now_s + 3.0), REPEATS)
        window = cpu_us(watch.sample, 20)
        ranks = [watch._ranks[rank] for rank in paths]

        def move() -> None:
            for number, path in enumerate(paths.values()):
                touch(path, now_s + 2.0 + number / 1e6 + time.process_time() / 1e3)

        def note() -> None:
            for rank in ranks:
                rank.note(now_s + 3.1)

        read = cpu_us(lambda: [reader.accounts(path, now_s) for path in paths.values()], 20)
        touching = cpu_us(move, 100)
        still = cpu_us(note, REPEATS)
        noting = cpu_us(lambda: (move(), note()), 100) - touching
    print(f"{options.ranks} ranks, {options.flows} flows and {options.ops} operations each; CPU of the agent:")
    print(f"  a look at all ranks in training {training:.0f} us, in a stall {stalled:.0f} us; every {LOOK_S} s")
    print(f"  a window {window / 1e3:.2f} ms, every {WINDOW_S:g} s")
    each = read / options.ranks / options.flows
    print(f"  what all ranks have added up {read / 1e3:.2f} ms ({each:.1f} us a connection), every {SHORT_S:g} s")
    share = training / LOOK_S + window / WINDOW_S + read / SHORT_S
    print(f"  in training {share / 1e4:.3f} % of a core")
    print(f"  notes of all ranks, nothing changed {still:.0f} us, all changed {noting / 1e3:.2f} ms; every {NOTE_S} s")
    print(f"  in a stall {(stalled / LOOK_S + still / NOTE_S + window / WINDOW_S) / 1e4:.3f} % of a core")


if __name__ == "__main__":
    main()
