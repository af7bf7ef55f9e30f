"""The nodes of `whole_start`, that have nothing, their origin, and the training that says when it is how far."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hosts import Cluster, Host
from power_loss import wait
from whole_start_ground import MODULES, PACKAGES, PYTHON, TENSORS, TESTS, Material

MODELS = {"near": (20, 50, 500), "far": (50, 25, 200), "slow": (100, 10, 100)}
"""Milliseconds to the first byte, MB/s for each connection, MB/s for all."""
LIMIT_S = 1800.0
PORT, ORIGIN_PORT = 29400, 8080
PHASES = ("first line", "torch", "imports", "group", "checkpoint", "step")
TRAIN = f"""
import time; BEGAN_S = time.monotonic()
import os
FOLDER, RANK, ATTEMPT = os.path.dirname(__file__), int(os.environ["RANK"]), os.environ["TORCHELASTIC_RESTART_COUNT"]
def note(name, at_s=None):
    with open(f"{{FOLDER}}/rank-{{ATTEMPT}}-{{RANK}}", "a") as file:
        file.write(f"{{name}}\\t{{time.monotonic() if at_s is None else at_s:.6f}}\\n")
note("first line", BEGAN_S)
import torch
import torch.distributed as dist
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
note("torch")
import {", ".join(MODULES)}
note("imports")
dist.init_process_group("gloo")
note("group")
NUMBERS = int(os.environ["WHOLE_START_BYTES"]) // dist.get_world_size() // {TENSORS} // 4
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
state = {{f"w{{number}}": DTensor.from_local(torch.empty(NUMBERS), mesh, [Shard(0)]) for number in range({TENSORS})}}
plain = os.environ.get("WHOLE_START_CHECKPOINT")
if plain:
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
    if plain.startswith("hdfs:"):
        import fsspec, io
        from hdfs_native.fsspec import HdfsFileSystem
        class Raw(io.RawIOBase):  # its files have no readinto, and a seek that says nothing
            def __init__(self, file): self.file = file
            def readable(self): return True
            def seekable(self): return True
            def seek(self, *where):
                self.file.seek(*where)
                return self.file.tell()
            def tell(self): return self.file.tell()
            def readinto(self, buffer):
                data = self.file.read(len(buffer))
                buffer[: len(data)] = data
                return len(data)
        class Readable(HdfsFileSystem):
            def _open(self, path, mode="rb", **more):
                file = super()._open(path, mode, **more)
                return io.BufferedReader(Raw(file), 8 << 20) if mode == "rb" else file
        fsspec.register_implementation("hdfs", Readable, clobber=True)
    dcp.load(state, storage_reader=FsspecReader(plain))
else:
    from robust_run.ckpt_io import dcp as ours
    ours.load(state, os.environ["ROBUST_RESUME"])
for number in range({TENSORS}):
    value, own = float(RANK * 100 + number), state[f"w{{number}}"].to_local()
    assert own[0] == value == own[-1]
note("checkpoint")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = torch.zeros(1)
while not done:
    optimizer.zero_grad()
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    note("step")
    time.sleep(0.1)
    done[0] = os.path.exists(f"{{FOLDER}}/done")
    dist.all_reduce(done)
dist.destroy_process_group()
"""

Notes = dict[int, dict[str, float]]
"""By rank: when each phase was over, the first time."""


class Ground:
    """A cluster of nodes that have nothing, a standby, and the origin."""

    def __init__(
        self, material: Material, cluster: Cluster, folder: Path, model: str, image: str, *, hdfs: bool
    ) -> None:
        """`hdfs`: whether the checkpoint lies in one; it is served over HTTP otherwise."""
        self.material, self.folder, self.image = material, folder, image
        *self.nodes, self.standby, origin = cluster
        self.url = f"http://{origin.address}:{ORIGIN_PORT}/"
        self.endpoint = f"{self.nodes[0].address}:{PORT}"
        served = [str(material.origin), str(ORIGIN_PORT), *map(str, MODELS[model]), "0.0.0.0"]
        origin.start([sys.executable, str(TESTS / "servers/model_origin.py"), *served], name="origin")
        self.setup = (
            f"{PYTHON} -m uv pip install -q --python {PYTHON} --break-system-packages --no-index"
            f" --find-links {self.url}wheels.html {' '.join(PACKAGES)}"
        )
        self.checkpoints = self._hdfs(origin) if hdfs else self.url
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")

    def _hdfs(self, origin: Host) -> str:
        """Run an HDFS on the origin's host, and put both checkpoints there. Returns the address that they lie below."""
        place = self.folder / "hdfs"
        place.mkdir()
        server = origin.start([sys.executable, str(TESTS / "servers/hdfs.py"), str(place), origin.address], name="hdfs")
        assert wait(lambda: server.lines() or server.poll() is not None, 300.0, 0.1) and server.lines(), server.err
        (url,) = server.lines()
        for kind in ("dcp", "ours"):
            copying = [sys.executable, str(Path(__file__).with_name("whole_start_ground.py")), "put"]
            folder = self.material.checkpoint(kind)
            origin.run([*copying, str(folder), f"{url}/{folder.name}"], timeout_s=LIMIT_S)
        return f"{url}/"

    def environment(self) -> dict[str, str]:
        """Return the variables of all launchers."""
        return {
            "GLOO_SOCKET_IFNAME": "eth0",
            "ROBUST_TOKEN": "the secret of a bench",
            "WHOLE_START_BYTES": str(self.material.checkpoint_bytes),
            "OMP_NUM_THREADS": "1",
        }

    def notes(self, attempt: int = 0) -> Notes:
        """Return what ranks have noted so far."""
        found: Notes = {}
        for path in self.folder.glob(f"rank-{attempt}-*"):
            mine = found.setdefault(int(path.name.rpartition("-")[2]), {})
            for line in path.read_text().splitlines():
                name, _, at = line.partition("\t")
                if at:
                    mine.setdefault(name, float(at))
        return found

    def last(self, name: str, attempt: int = 0) -> float | None:
        """Return when the last rank was through a phase; None: not all are."""
        at = [mine[name] for mine in self.notes(attempt).values() if name in mine]
        return max(at) if len(at) == len(self.nodes) else None

    def wait_for_step(self, launchers: list[Any], attempt: int = 0) -> float:
        """Wait for the first step of all ranks; return its moment."""

        def is_over() -> bool:
            return self.last("step", attempt) is not None or any(each.poll() not in (None, 0) for each in launchers)

        wait(is_over, LIMIT_S, 0.1)
        at_s = self.last("step", attempt)
        if at_s is None:
            said = "\n".join(f"--- {each.args[-1]}\n{each.err[-9000:]}{each.out[-1000:]}" for each in launchers[:2])
            raise SystemExit(f"the job did not start:\n{said}")
        return at_s

    def finish(self, launchers: list[Any]) -> None:
        """Let the job end."""
        (self.folder / "done").touch()
        for each in launchers:
            code = each.wait(LIMIT_S)
            assert code == 0, f"{each.args} ended with {code}: {each.err[-2000:]}"

    def forget(self) -> None:
        """Remove what a job has noted."""
        for path in (*self.folder.glob("rank-*"), *self.folder.glob("node-*"), self.folder / "done"):
            if path.is_file():
                path.unlink()

    def phases(self, began_s: float, before: dict[str, float] | None = None, attempt: int = 0) -> dict[str, float]:
        """Return how long each phase took, by its end on the last node or rank."""
        ends = {**(before or {}), **{name: self.last(name, attempt) or began_s for name in PHASES}}
        found, at_s = {}, began_s
        for name, end_s in ends.items():
            found[name] = end_s - at_s
            at_s = end_s
        return found
