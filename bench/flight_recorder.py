"""What regular looks at torch's flight recorder cost a rank and its agent, per minute; gloo, one rank, a full recorder.

    python bench/flight_recorder.py [--entries 2000]

CPU time. In the worker: counts after a step, once a second; the hook's other calls; C++ threads that answer the agent. NCCL's
recorder needs a GPU: what is measured in its place is the smallest question to the same server, and the counts of gloo's.
Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from worker_side import load_worker_side  # noqa: E402

from robust_run.tracer.flight.asking import EVERY_S, REST  # noqa: E402
from robust_run.tracer.flight.progress import Progress  # noqa: E402
from robust_run.tracer.flight.status import parse_names, parse_status  # noqa: E402
from robust_run.tracer.sight.flight_recorder import _ask  # noqa: E402

REPEATS, ROUNDS = 2000, 40
RANK = """
import sys, time, torch, torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1] + ".store", 1), rank=0, world_size=1)
server = _WorkerServer(sys.argv[1] + ".sock", -1)
for _ in range(int(sys.argv[2])):
    dist.all_reduce(torch.ones(4))
print("ready", flush=True)
for line in sys.stdin:
    print(time.process_time(), flush=True)
server.shutdown()
"""


def cpu_us(what: Callable[[], object], repeats: int) -> float:
    """CPU time of a call, in microseconds."""
    before = time.process_time()
    for _ in range(repeats):
        what()
    return (time.process_time() - before) / repeats * 1e6


def in_worker(entries: int, folder: str) -> dict[str, float]:
    """What the hook costs, in a process that has torch."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d as library

    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
    for _ in range(entries):
        dist.all_reduce(torch.ones(4))
    clocks_side: Any = load_worker_side().load("clocks")
    ring = type("Ring", (), {"octets": bytearray(4096), "recording": True})
    clocks = clocks_side.Clocks(ring, library._dump_fr_trace_json)

    def due() -> None:
        clocks.next_ns = 0
        clocks.look()

    found = {"counts_us": cpu_us(due, REPEATS), "other_steps_us": cpu_us(clocks.look, 100 * REPEATS)}
    whole = library._dump_fr_trace_json(True, False)
    counts = library._dump_fr_trace_json(False, False)
    progress = Progress()

    def take() -> None:
        progress.take(parse_status(counts, on_nccl=True) or (), time.monotonic(), 5, on_nccl=True)

    parse_names(whole, on_nccl=False)
    found |= {"agent_counts_us": cpu_us(take, REPEATS), "whole_bytes": len(whole), "counts_bytes": len(counts)}
    found["agent_whole_us"] = cpu_us(
        lambda: (parse_status(whole, on_nccl=False), parse_names(whole, on_nccl=False)), ROUNDS
    )
    dist.destroy_process_group()
    return found


def asked(entries: int, folder: str) -> dict[str, float]:
    """What an answer costs the worker and the agent."""
    path = f"{folder}/rank"
    running = subprocess.Popen(
        [sys.executable, "-c", RANK, path, str(entries)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert running.stdin is not None and running.stdout is not None
    assert running.stdout.readline() == "ready\n", "this torch has no worker server for us"

    def spent_s() -> float:
        assert running.stdin is not None and running.stdout is not None
        running.stdin.write("\n")
        running.stdin.flush()
        return float(running.stdout.readline())

    found: dict[str, float] = {}
    try:
        for name, ask in (
            ("whole", lambda: _ask(f"{path}.sock", "fr_trace_json")),
            ("small", lambda: _ask(f"{path}.sock", "ping")),
        ):

            async def often(ask: Callable[[], Any] = ask) -> None:
                for _ in range(ROUNDS):
                    await ask()

            before_s, own_s, began_s = spent_s(), time.process_time(), time.perf_counter()
            asyncio.run(often())
            took_s = time.perf_counter() - began_s
            found |= {
                f"worker_{name}_us": (spent_s() - before_s) / ROUNDS * 1e6,
                f"agent_ask_{name}_us": (time.process_time() - own_s) / ROUNDS * 1e6,
                f"{name}_took_us": took_s / ROUNDS * 1e6,
            }
    finally:
        running.stdin.close()
        running.wait(60)
    return found


def main() -> None:
    """Measure, and say what it comes to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=2000)
    entries = parser.parse_args().entries
    with tempfile.TemporaryDirectory() as folder:
        found = asked(entries, folder) | in_worker(entries, folder)
    every_s = max(EVERY_S, REST * found["whole_took_us"] / 1e6)
    per_minute = {
        "trains on gloo, in the worker": 60 * found["counts_us"] / 1e3,
        "trains on gloo, in the agent": 60 * found["agent_counts_us"] / 1e3,
        "silent on gloo, in the worker": 60 / every_s * found["worker_whole_us"] / 1e3,
        "silent on gloo, in the agent": 60 / every_s * (found["agent_ask_whole_us"] + found["agent_whole_us"]) / 1e3,
        "on NCCL, in the worker (the same server's smallest answer)": 60 / EVERY_S * found["worker_small_us"] / 1e3,
        "on NCCL, in the agent": 60 / EVERY_S * (found["agent_ask_small_us"] + found["agent_counts_us"]) / 1e3,
    }
    for name, value in found.items():
        print(f"{name:24} {value:10.1f}")
    print("\nCPU time for each rank and minute, in ms:")
    for name, value in per_minute.items():
        print(f"  {name:60} {value:8.2f}")
    print(json.dumps({"bench": "flight", "schema": 1, "cases": found, "ms_per_rank_and_minute": per_minute}))


if __name__ == "__main__":
    main()
