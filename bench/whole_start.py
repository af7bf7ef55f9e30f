"""A whole start, from nothing on 8 nodes to the first optimizer step of all ranks: image, packages and checkpoint together.

    python bench/whole_start.py                        # half an hour and more
    python bench/whole_start.py --quick                # 2 nodes, one model, the small image, 0.2 GB of checkpoint
    python bench/whole_start.py --folder /big/disk/x   # what was made is kept there, and used again

Nodes are hosts in network namespaces (tests/hosts.py; needs root), each with a disk of its own; one more host is the origin of
image, packages and checkpoint, modelled: a delay to the first byte, a rate for each connection and one for all (near: 20 ms, 50
MB/s, 500 MB/s; far: 50 ms, 25 and 200 MB/s; slow: 100 ms, 10 and 100 MB/s). Each rank has its own part of the checkpoint. Ways:

    plain       download the image 16-way, unpack it, `uv pip install`, torchrun, and DCP reads its part over one stream
    plain-warm  the same, uv's cache filled before
    local       what plain has left on the nodes: robust-run starts in it, and reads a checkpoint of the local disk
    first       robust-run --image --setup --ckpt-dir, nothing of it seen before
    second      the same on nodes that have nothing, with what the first start has left in the store: snapshot and hot list
    relaunch    in that job a node loses its power, and a standby, which joined with nothing and is ready now, takes its place
    plain-relaunch  after plain, the same loss, noticed at once: the whole sequence on a fresh node, then torchrun on all

A figure is the seconds from the launch on all nodes to the end of the first optimizer step on the last one. An image that is
padded (2 and 20 GB of zeros that no disk holds) is thrown away by plain as it comes, and the small one is unpacked: its disk
would cost more. With --hdfs the checkpoint lies in a real HDFS (three DataNodes, needs Java) that has no rate. The last line of
standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from env_ways import say
from hosts import Cluster, Host, supported
from power_loss import JournalSoFar, wait
from sidebyside import print_result, spread, unwind_on_sigterm
from whole_start_cluster import LIMIT_S, MODELS, Ground
from whole_start_ground import PYTHON, Material

PLAIN, PLAIN_WARM, PLAIN_RELAUNCH, LOCAL, FIRST, SECOND, RELAUNCH = WAYS = (
    "plain", "plain-warm", "plain-relaunch", "local", "first", "second", "relaunch"
)  # fmt: skip
AIMS = ((SECOND, PLAIN, 0.15), (FIRST, PLAIN, 0.35), (SECOND, LOCAL, 1.05), (RELAUNCH, PLAIN_RELAUNCH, 0.15))


@dataclass
class Bench:
    """What all runs share."""

    args: argparse.Namespace
    material: Material
    found: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    fetched: dict[str, float] = field(default_factory=dict)
    runs: int = 0

    def note(self, model: str, image: str, way: str, took_s: float, phases: dict[str, float]) -> None:
        """Keep what one run took, and say it."""
        self.found.setdefault((model, image, way), []).append(took_s)
        self.phases[f"{model} {image} {way}"] = {name: round(value, 2) for name, value in phases.items()}
        told = "  ".join(f"{name} {value:.1f}" for name, value in phases.items())
        say(f"{model:5} {image:6} {way:10} {took_s:8.2f} s   {told}   load {os.getloadavg()[0]:.1f}")


def plain(ground: Ground, host: Host, node: int, *, nodes: int, cache: Path, ready: bool = False) -> Any:
    """Start the plain sequence on a node."""
    material = ground.material
    small = ground.image == "small"
    size = Path(material.origin / f"{ground.image}.sqsh").stat().st_size
    options = {
        "folder": ground.folder, "private": host.private, "origin": ground.url, "image": ground.image,
        "small": material.image, "setup": ground.setup, "endpoint": ground.endpoint, "cache": cache, "node": node,
        "nodes": nodes, "image-bytes": size, "checkpoint": f"{ground.checkpoints}{material.checkpoint('dcp').name}",
    }  # fmt: skip
    argv = [sys.executable, str(Path(__file__).with_name("whole_start_plain.py"))]
    for name, value in options.items():
        argv += [f"--{name}", str(value)]
    argv += [*([] if small else ["--throw-away"]), *(["--ready"] if ready else [])]
    return host.start(argv, env=ground.environment(), name="plain")


def run_plain(ground: Ground, way: str) -> tuple[float, dict[str, float]]:
    """The plain sequence on all nodes, to the first step."""
    caches = []
    for host in ground.nodes:
        cache = host.private / "uv-cache"
        if way == PLAIN_WARM:
            shutil.copytree(ground.material.folder / "uv-cache", cache)
        cache.mkdir(exist_ok=True)
        caches.append(cache)
    began_s = time.monotonic()
    nodes = len(ground.nodes)
    launchers = [plain(ground, host, node, nodes=nodes, cache=caches[node]) for node, host in enumerate(ground.nodes)]
    took_s = ground.wait_for_step(launchers) - began_s
    before = {
        name: max(_node_notes(ground, node)[name] for node in range(nodes))
        for name in ("image", "unpacked", "packages")
    }
    phases = ground.phases(began_s, before)
    ground.finish(launchers)
    kept = ground.material.folder / "uv-cache"
    if way == PLAIN and not kept.exists():
        shutil.copytree(caches[0], kept)
    ground.forget()
    return took_s, phases


def run_plain_relaunch(ground: Ground) -> tuple[float, dict[str, float]]:
    """The last node is lost, and all know it at once: the standby begins with nothing, and then all start anew."""
    cache = ground.standby.private / "uv-cache"
    cache.mkdir()
    nodes = len(ground.nodes)
    ground.nodes[-1].power_off()
    began_s = time.monotonic()
    launchers = [plain(ground, ground.standby, nodes - 1, nodes=nodes, cache=cache)]
    notes = ground.folder / f"node-{nodes - 1}"
    wait(lambda: (notes.exists() and "packages" in notes.read_text()) or launchers[0].poll(), LIMIT_S, 0.1)
    launchers += [
        plain(ground, host, node, nodes=nodes, cache=cache, ready=True) for node, host in enumerate(ground.nodes[:-1])
    ]
    took_s = ground.wait_for_step(launchers) - began_s
    before = {name: _node_notes(ground, nodes - 1)[name] for name in ("image", "unpacked", "packages")}
    phases = ground.phases(began_s, before)
    ground.finish(launchers)
    ground.forget()
    return took_s, phases


def _node_notes(ground: Ground, node: int) -> dict[str, float]:
    lines = (ground.folder / f"node-{node}").read_text().splitlines()
    return {name: float(at) for name, _, at in (line.rpartition(" ") for line in lines)}


def run_local(ground: Ground) -> tuple[float, dict[str, float]]:
    """What plain has left on the nodes: robust-run starts in it, with the checkpoint on the disk."""
    checkpoint = ground.folder / "ckpt"
    checkpoint.symlink_to(ground.material.checkpoint("ours"))
    began_s = time.monotonic()
    launchers = []
    for host in ground.nodes:
        root = host.private / "root"
        (root / "bench-ckpt").mkdir(exist_ok=True)
        mounting = [
            "sh",
            "-c",
            'mount --rbind "$0" "$1" && shift && exec /usr/sbin/chroot "$@"',
            str(checkpoint.resolve()),
            str(root / "bench-ckpt"),
        ]
        argv = [*mounting, str(root), PYTHON, "-m", "robust_run", *meeting(ground), "--ckpt-dir", "/bench-ckpt"]
        inside = {
            "PATH": "/opt/python/bin:/bin",
            "LD_LIBRARY_PATH": "/opt/python/lib",
            "TMPDIR": "/tmp",
            "HOME": "/root",
        }
        launchers.append(
            host.start([*argv, f"{ground.folder}/train.py"], env={**ground.environment(), **inside}, name="local")
        )
    took_s = ground.wait_for_step(launchers) - began_s
    phases = ground.phases(began_s)
    ground.finish(launchers)
    ground.forget()
    return took_s, phases


def meeting(ground: Ground) -> list[str]:
    """Return the options by which nodes find each other."""
    nodes = len(ground.nodes)
    found = ["--nnodes", str(nodes), "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "bench"]
    return [*found, "--rdzv-endpoint", ground.endpoint, "--log-dir", f"{ground.folder}/runs", "--run-id", "bench"]


def ours(ground: Ground, host: Host, store: Path, hot: Path, *more: str) -> Any:
    """Start robust-run on a node."""
    cache = host.private / "cache"
    cache.mkdir(mode=0o700)
    if hot.exists():
        shutil.copytree(hot, cache / "hot")
    argv = [sys.executable, "-m", "robust_run", *meeting(ground), *more]
    argv += ["--image", f"{ground.url}{ground.image}.sqsh", "--image-cache", str(cache)]
    argv += [
        "--setup",
        ground.setup,
        "--setup-store",
        str(store),
        "--ckpt-dir",
        f"{ground.checkpoints}{ground.material.checkpoint('ours').name}",
    ]
    env = {**ground.environment(), "PYTHON_EXEC": PYTHON}
    return host.start([*argv, f"{ground.folder}/train.py"], env=env, cwd=ground.folder, name="robust-run")


def run_ours(
    ground: Ground, store: Path, hot: Path, *, with_loss: bool
) -> Iterator[tuple[str, float, dict[str, float]]]:
    """One job of ours, first or second as the store has it; then, if asked for, the loss of a node."""
    way = SECOND if hot.exists() else FIRST
    nodes = ground.nodes
    began_s = time.monotonic()
    spare = ["--standby", "1"] if with_loss else []
    launchers = [ours(ground, host, store, hot, *spare) for host in nodes]
    yield way, ground.wait_for_step(launchers) - began_s, ground.phases(began_s)
    if with_loss:
        launchers.append(ours(ground, ground.standby, store, hot, *spare))
        path = ground.folder / "runs" / "bench" / "journal.jsonl"
        is_ready = wait(
            lambda: len({each["node"] for each in JournalSoFar(path).events("standby_ready")}) > len(nodes),
            LIMIT_S,
            0.2,
        )
        assert is_ready, "the standby is not ready"
        lost_s = time.monotonic()
        nodes[-1].power_off()
        lost = launchers.pop(len(nodes) - 1)
        lost.wait(60)
        took_s = ground.wait_for_step(launchers, attempt=1) - lost_s
        yield RELAUNCH, took_s, ground.phases(lost_s, attempt=1)
    ground.finish(launchers)
    if not hot.exists():
        shutil.copytree(nodes[0].private / "cache" / "hot", hot)


@contextlib.contextmanager
def ground_of(bench: Bench, model: str, image: str) -> Iterator[Ground]:
    """A cluster of nodes that have nothing."""
    bench.runs += 1
    folder = bench.material.folder / f"run-{bench.runs}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        with Cluster(bench.args.nodes + 2, folder) as cluster:
            yield Ground(bench.material, cluster, folder, model, image, hdfs=bench.args.hdfs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(bench: Bench) -> None:
    """All ways in turns, for each model and image."""
    args = bench.args
    for number in range(args.rounds):
        for model in args.models:
            for image in args.images:
                store, hot = (bench.material.folder / f"{kind}-{number}-{model}-{image}" for kind in ("store", "hot"))
                for path in (store, hot):
                    shutil.rmtree(path, ignore_errors=True)
                one_round(bench, model, image, store, hot)


def one_round(bench: Bench, model: str, image: str, store: Path, hot: Path) -> None:
    """Each way once."""
    ways = bench.args.ways
    for way in (PLAIN, PLAIN_WARM):
        if way in ways:
            with ground_of(bench, model, image) as ground:
                bench.note(model, image, way, *run_plain(ground, way))
                if way == PLAIN and LOCAL in ways:
                    bench.note(model, image, LOCAL, *run_local(ground))
                if way == PLAIN and PLAIN_RELAUNCH in ways:
                    bench.note(model, image, PLAIN_RELAUNCH, *run_plain_relaunch(ground))
    for way in (FIRST, SECOND):
        if way in ways:
            with ground_of(bench, model, image) as ground:
                for found in run_ours(ground, store, hot, with_loss=way == SECOND and RELAUNCH in ways):
                    bench.note(model, image, *found)


def report(bench: Bench) -> None:
    """Print ratios, and the JSON."""
    cases = [
        {"model": model, "image": image, "way": way, "seconds": spread(values)}
        for (model, image, way), values in bench.found.items()
    ]
    judged = []
    for model in bench.args.models:
        for image in bench.args.images:
            for way, other, aim in AIMS:
                values, others = (bench.found.get((model, image, each)) for each in (way, other))
                if values and others:
                    value = statistics.median(values) / statistics.median(others)
                    judged.append(
                        {
                            "model": model,
                            "image": image,
                            "ratio": f"{way} / {other}",
                            "value": round(value, 3),
                            "aim": aim,
                        }
                    )
                    say(f"{model:5} {image:6} {way} / {other}: {value:.2f} (aim {aim})")
    sizes = {"image": bench.material.image.stat().st_size, "checkpoint": bench.material.checkpoint_bytes}
    print_result(
        "whole_start", cases, ratios=judged, phases=bench.phases, sizes=sizes, models=MODELS, nodes=bench.args.nodes
    )


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--quick", action="store_true", help="2 nodes, one model, the small image, 0.2 GB of checkpoint"
    )
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["near", "far"])
    parser.add_argument("--images", nargs="+", default=["2", "20"], help="GB of the padded image, or small")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--checkpoint-gb", type=float, default=1.6)
    parser.add_argument("--hdfs", action="store_true", help="the checkpoint lies in a real HDFS, which has no rate")
    parser.add_argument(
        "--folder", default=None, help="where to write, and keep what is made; default: a temporary one"
    )
    args = parser.parse_args()
    if args.quick:
        args.nodes, args.models, args.images, args.checkpoint_gb = 2, ["near"], ["small"], 0.2
    return args


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    args = parse_arguments()
    unwind_on_sigterm()
    if reason := supported():
        raise SystemExit(reason)
    folder = Path(args.folder or tempfile.mkdtemp(prefix="whole-start-"))
    try:
        material = Material(folder, args.nodes, int(args.checkpoint_gb * 1e9))
        material.make([float(name) for name in args.images if name != "small"])
        bench = Bench(args, material)
        measure(bench)
        report(bench)
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
