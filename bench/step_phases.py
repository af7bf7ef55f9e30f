"""What it costs the CPU to time what steps consist of (`robust_run/tracer/arm/phases.py`), as a part of a step.

    python bench/step_phases.py --blocks 20 --steps 20

First of marks alone: events that take `--event-us` each to record, to ask and to read, as a driver might; nothing is computed.
Then of real steps: one rank of DistributedDataParallel over gloo on the CPU, timed by the host's clock. Blocks of steps with and
without take turns in one process, and the CPU time of both is compared; as that differs by more than timing costs, what counts
is the cost of all marks and readings of a step. Weights must be the same, bit for bit, as those of a run without any of it. What
a real driver takes is measured by `tests/gpu/test_phases.py`. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from types import ModuleType
from typing import Any

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

LIMIT = 0.002
#: Marks of a step, and what it takes: DistributedDataParallel; tensor parallelism or FSDP of a large model.
KINDS = {"ddp, 100 ms": (3, 0.1), "200 collectives, 500 ms": (403, 0.5), "800 collectives, 2 s": (1603, 2.0)}


class SlowEvent:
    """An event whose calls take the CPU as long as those of a driver."""

    __slots__ = ("at_ns", "cost_ns")

    def __init__(self, cost_ns: int) -> None:
        self.cost_ns = cost_ns

    def spin(self) -> int:
        """Take that long; return the time."""
        end_ns = time.perf_counter_ns() + self.cost_ns
        while (now_ns := time.perf_counter_ns()) < end_ns:
            pass
        return now_ns

    def record(self, _: Any) -> None:
        """Note the time."""
        self.at_ns = self.spin()

    def query(self) -> bool:
        """Whether it is known."""
        self.spin()
        return True

    def elapsed_time(self, end: SlowEvent) -> float:
        """Return the milliseconds from this one to another."""
        self.spin()
        return (end.at_ns - self.at_ns) / 1e6


def load(name: str) -> ModuleType:
    """Return a file that runs in workers."""
    path = os.path.join(ROOT, "robust_run", "tracer", "arm", "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("worker_side", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded: ModuleType = module.load(name)
    return loaded


def of_marks(event_us: float, folder: str) -> dict[str, float]:
    """Return which part of a step marks and readings take, for each kind of step."""
    from robust_run.tracer.files import phases

    timing, found = load("phase_timer"), {}
    for kind, (marks, step_s) in KINDS.items():
        path = os.path.join(folder, "marks.phases")
        phases.create(path)
        device = load("host_clock").HostClock()
        device.event = lambda: SlowEvent(int(event_us * 1e3))
        timer = timing.Timer(path, device, print, share=1e9)
        timer.end_step()
        taken_s = []
        for _ in range(30):
            began_s = time.thread_time()
            timer.mark(timing.BACKWARD)
            for number in range(marks - 3):
                timer.mark(timing.WAITED if number % 2 else timing.WAIT)
            timer.mark(timing.COMPUTED)
            timer.mark(timing.BACKWARD_END)
            timer.end_step()
            taken_s.append(time.thread_time() - began_s)
        found[kind] = statistics.median(taken_s) / step_s
        print(
            f"  {kind}: {statistics.median(taken_s) * 1e6:.0f} us, {found[kind]:.3%} of a step: one in "
            f"{stride_for(found[kind])} steps is timed",
            flush=True,
        )
    return found


def train(folder: str, blocks: int, steps: int, *, timed: bool) -> tuple[dict[str, float], str]:
    """Return CPU and cost of real steps, and a digest of the weights."""
    import hashlib
    from types import SimpleNamespace

    import torch
    import torch.distributed as dist
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from robust_run.tracer.files import phases

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.Tanh())])
    )
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(64, 512)
    timer = None
    if timed:
        path = os.path.join(folder, "real.phases")
        phases.create(path)
        os.environ["ROBUST_TRACE_PHASES"] = "host"
        hooks = SimpleNamespace(library=torch._C._distributed_c10d, replace=lambda _: None, timed=[])
        end_step = load("phases").begin(path, hooks, torch)
        timer = end_step.__self__
        timer.share = 1e9
        passes = load("backward").Passes(SimpleNamespace(timed=hooks.timed, ring=None), lambda: False)
        torch.autograd.backward = passes.backward(torch.autograd.backward)
        register_optimizer_step_post_hook(lambda *_: end_step())
    used_s: dict[bool, list[float]] = {True: [], False: []}
    costs_ns: list[int] = []
    length_s = []
    for block in range(blocks):
        with_it = block % 2 == 0
        if timer is not None:
            timer.stopped, timer.making = not with_it, None
            timer.pending.clear()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for _ in range(steps):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            for _ in range(4):
                dist.all_reduce(torch.zeros(8))
            optimizer.step()
        used_s[with_it].append((time.process_time() - began_cpu_s) / steps)
        length_s.append((time.perf_counter() - began_s) / steps)
        if timer is not None and with_it:
            costs_ns += timer.costs_ns
            timer.costs_ns = []
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:16]
    if timer is None:
        return {}, digest
    found = {
        "step_ms": statistics.median(length_s) * 1e3,
        "cost_us": statistics.median(costs_ns) / 1e3,
        "cpu_ratio": statistics.median(used_s[True]) / statistics.median(used_s[False]),
    }
    share = found["cost_us"] / found["step_ms"] / 1e3
    return found | {"share": share, "stride": float(stride_for(share))}, digest


def stride_for(share: float) -> int:
    """Return in one of how many steps that part of a step may be taken."""
    stride = 1
    while share / stride > LIMIT and stride < 128:
        stride *= 2
    return stride


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--event-us", type=float, default=1.5, help="what a call of the driver takes (default 1.5)")
    parser.add_argument("--blocks", type=int, default=20, help="of real steps, half of them timed (default 20)")
    parser.add_argument("--steps", type=int, default=20, help="of a block (default 20)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="robust-phases-") as folder:
        marks = of_marks(args.event_us, folder)
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=0, world_size=1)
        _, plain = train(folder, args.blocks, args.steps, timed=False)
        real, timed = train(folder, args.blocks, args.steps, timed=True)
        dist.destroy_process_group()
    print(
        f"  real steps of {real['step_ms']:.1f} ms: {real['cost_us']:.0f} us, {real['share']:.3%} of a step, one in "
        f"{real['stride']:.0f} is timed; "
        f"CPU time with and without: {real['cpu_ratio']:.4f}"
    )
    print(f"  weights are {'the same' if plain == timed else 'NOT the same'}, bit for bit")
    fine = real["stride"] <= 64 and plain == timed
    print(json.dumps({"marks": marks, "real": real, "weights_equal": plain == timed, "within_limit": fine}))
    raise SystemExit(0 if fine else 1)


if __name__ == "__main__":
    main()
