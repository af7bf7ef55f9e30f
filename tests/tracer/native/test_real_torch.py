"""With the real torch both recorders write the same of the same calls, and training is the same, bit for bit, as without them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import hashlib, os, sys, warnings
warnings.simplefilter("ignore")
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import torch, torch.distributed as dist
import torch._C._distributed_c10d as library, torch.distributed.distributed_c10d as distributed
import torch.distributed._functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from worker_side import load_worker_side
torch.set_num_threads(1)
rank, world = int(sys.argv[4]), int(sys.argv[5])
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meeting"), rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))

def steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
    return list(model.state_dict().values())

def layers():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))

def train():
    torch.manual_seed(1)
    made = steps(DistributedDataParallel(layers()))
    made += steps(fully_shard(layers(), mesh=mesh))
    made += steps(torch.compile(DistributedDataParallel(layers()), backend="eager"))
    weight = distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)])
    made += [weight.redistribute(mesh, [Replicate()]), (weight @ weight.t()).full_tensor()]
    whole = lambda x: functional.all_reduce(x, "sum", dist.group.WORLD) * 2
    made.append(torch.compile(whole, backend="eager", fullgraph=True)(torch.randn(3)))
    x, gathered = torch.randn(6), [torch.empty(6) for _ in range(world)]
    for _ in range(2):
        work = dist.all_reduce(x, async_op=True)
        work.wait(), work.wait()
        dist.all_gather(gathered, x), dist.broadcast(x, 0), dist.barrier()
        parts = [x.clone() for _ in range(world)]
        dist.all_to_all_single(torch.empty(6), x), dist.reduce_scatter(x, parts)
        dist.all_gather_into_tensor(torch.empty(6 * world), x)
        dist.scatter(x, parts if rank == 0 else None), dist.gather(x, parts if rank == 0 else None)
        try:
            dist.group.WORLD.allreduce(7)
        except TypeError:
            pass
        work = dist.group.WORLD.allreduce([x])
        work.is_completed() or work.wait()
    made += [x, *gathered]
    plain = [each.full_tensor() if isinstance(each, DTensor) else each for each in made]
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in plain)).hexdigest()

before = train()
worker = load_worker_side()
rings = []

def fail(error):
    raise error

def hook(ring, hooks_class):
    rings.append(ring)
    hooks = hooks_class(ring, distributed, library, lambda: None)
    hooks.late_done = True  # that part looks at frames, and finds its own in the place of torch's
    hooks.install()
    return hooks

from robust_run.tracer.files import ring, ring_format
for name in ("python", "c"):
    ring.create(name, rank, world)
hooks = hook(worker.load("recorder").Ring("python", fail), worker.load("hooks").Hooks)
if sys.argv[3]:
    native = worker.load("native")
    hooks = hook(native.NativeRing("c", fail, native.extension(sys.argv[3])), native.NativeHooks)
assert train() == before, "training has changed"
def content(name):
    with open(name, "rb") as file:
        octets = file.read()
    slots = range(ring_format.SLOTS_AT, ring_format.MARKS_AT, ring_format.SLOT_BYTES)
    cells = memoryview(octets).cast("Q")
    return [octets[at + 24 : at + 64] for at in slots], octets[ring_format.TABLE_AT :], list(cells[2:7]), cells[13]

traces = [ring.read(name) for name in ("python", "c")[: len(rings)]]
names = {op.op for op in traces[0].ops}
assert {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "scatter", "gather"} <= names
assert {op.state for op in traces[0].ops} >= {"done", "failed"}
assert len(rings) == 1 or content("python") == content("c"), [
    (one, other) for one, other in zip(traces[0].ops, traces[1].ops) if (one.site, one.numel, one.state) !=
    (other.site, other.numel, other.state)
][:3]
hooks.late_done = False
hooks.install_late()
assert train() == before, "training has changed"
assert "ddp_backward" in {op.op for op in ring.read("c" if sys.argv[3] else "python").ops}
print(len(traces[0].ops), "calls", flush=True)
os._exit(0)
"""


def test_training_is_the_same_bit_for_bit_and_so_are_the_rings(tmp_path: Path, built_in_c: object) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    tests = Path(__file__).parents[2]
    argv = [sys.executable, "program.py", str(tests), str(tests.parent), getattr(built_in_c, "path", ""), "0", "1"]
    ended = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith(" calls\n")
