"""How fast a program starts from an image that is not here: lazily, after a download, and with recorded hot blocks.

    python bench/image_start.py                 # about 10 minutes
    python bench/image_start.py --quick         # one minute: one round, one model, the small image
    python bench/image_start.py --models a --ways local lazy second --padded 0

The image holds this interpreter's environment (a venv with torch; 20,000 files or more, unless --environment says otherwise). It
is also padded to 20 GB, as images of GPU environments are. The origin is modelled: a delay to the first byte, a rate for each
connection and one for all of them (a: 20 ms, 50 MB/s, 500 MB/s; b: 50 ms, 25 MB/s, 200 MB/s). Ways, in turns:

    local     the image is a local file that is not in the page cache
    lazy      served block by block, as it is read: no hot list, no download beside it
    one       downloaded over one connection, then as local
    sixteen   downloaded over 16 connections in ranges of 4 MiB, then as local
    first     robust-run's first launch: downloads and records while the program starts
    second    its second launch, on another node: hot blocks ahead of the program
    again     a later launch on a node that has all of the image in its cache, but not in its page cache: verified as it is read

A figure is the seconds from the launch to the end of `import torch` and one step of DistributedDataParallel. Downloads of the
padded image are thrown away as they come and the small image is started: what a disk would cost is left out, in favour of them.
The image is compressed with zstd, as `robust image build` does by default. With lz4 (--compress lz4) it has a quarter more
hot blocks: the lazy way is slower then, and how far ahead of it the second launch is looks better.

What only the network's rate or delay decides (lazy, one, sixteen of the padded image) runs in the first round only. The last line
of standard output is one JSON object, with the ratios and what they should be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from sidebyside import print_result, spread, unwind_on_sigterm

from robust_run.prefetch import blockmap
from robust_run.prefetch.bringing import bring
from robust_run.prefetch.fetching.sources import origin
from robust_run.prefetch.image.build import BuildOptions, build
from robust_run.prefetch.inside import Begun, InsidePlan, begin, start
from robust_run.prefetch.launch import Prepared, prepare
from robust_run.prefetch.record import keep
from robust_run.prefetch.rules.types import BlockMap, BlockRun, FetchLimits
from robust_run.prefetch.server.config import ServeOptions
from robust_run.prefetch.window import close
from robust_run.store.cancelling import Cancellation

MODELS = {"a": (20, 50, 500), "b": (50, 25, 200)}
"""Milliseconds to the first byte, MB/s for each connection, MB/s for all."""
LOCAL, LAZY, ONE, SIXTEEN, FIRST, SECOND, AGAIN = WAYS = (
    "local", "lazy", "one", "sixteen", "first", "second", "again"
)  # fmt: skip
ONLY_SMALL = (LAZY, ONE, AGAIN)
SLOW = {("small", LAZY), ("small", ONE), ("padded", SIXTEEN)}
"""In the first round only."""
AIMS = (
    (
        "second / local",
        SECOND,
        LOCAL,
        "at most",
        {("a", "small"): 1.15, ("b", "small"): 1.15, ("a", "padded"): 1.15, ("b", "padded"): 1.15},
    ),
    ("again / local", AGAIN, LOCAL, "at most", {("a", "small"): 1.15, ("b", "small"): 1.15}),
    ("lazy / second", LAZY, SECOND, "at least", {("a", "small"): 3.0, ("b", "small"): 6.0}),
    ("first / sixteen", FIRST, SIXTEEN, "at most", {("a", "small"): 1.15, ("b", "small"): 1.15}),
    ("sixteen / second", SIXTEEN, SECOND, "at least", {("a", "padded"): 15.0, ("b", "padded"): 15.0}),
)
"""Which way against which, and what their ratio should be, by model and image."""
FEWEST_FILES = 20_000
RANGE_BYTES = 4 << 20
LIMIT_S = 900.0
ORIGIN = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "servers", "model_origin.py"
)
JOB = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 64)).sum().backward()
optimizer.step()
dist.destroy_process_group()
print(torch.__file__, flush=True)
"""


@dataclass
class Bench:
    """What all runs share."""

    folder: str
    environment: str
    compression: str
    images: dict[str, str] = field(default_factory=dict)
    """small, padded: paths."""
    maps: dict[str, BlockMap] = field(default_factory=dict)
    notes: dict[str, dict[str, Any]] = field(default_factory=dict)
    runs: int = 0

    def prepare(self, padded_gb: float) -> None:
        """Build the images."""
        path = os.path.join(self.folder, "origin", "small.sqsh")
        os.mkdir(os.path.dirname(path))
        options = BuildOptions(compression=self.compression, mount_at=self.environment)  # type: ignore[arg-type]
        self.images["small"], self.maps["small"] = path, build(self.environment, path, options)
        if padded_gb:
            self.images["padded"] = os.path.join(self.folder, "origin", "padded.sqsh")
            self.maps["padded"] = pad(path, self.maps["small"], self.images["padded"], int(padded_gb * 1e9) >> 20 << 20)

    def fresh(self) -> str:
        """Return a new folder, the working directory of one run."""
        self.runs += 1
        path = os.path.join(self.folder, f"run-{self.runs}")
        os.mkdir(path)
        return path


def pad(small: str, small_map: BlockMap, path: str, size_bytes: int) -> BlockMap:
    """Copy an image, append zeros that take no space, and write the map, of which most is known without reading."""
    shutil.copyfile(small, path)
    os.truncate(path, size_bytes)
    block = blockmap.block_bytes_for(size_bytes)
    small_map = blockmap.make(small, block_bytes=block, mount_at=small_map.mount_at)
    whole = small_map.size_bytes // block
    with open(path, "rb") as file:
        file.seek(whole * block)
        last = blockmap.block_digest(file.read(block))
    zeros = blockmap.block_digest(bytes(block)) * (size_bytes // block - whole - 1)
    digests = small_map.digests[: whole * blockmap.DIGEST_BYTES] + last + zeros
    made = BlockMap(
        size_bytes=size_bytes, block_bytes=block, sha256="0" * 64, digests=digests, mount_at=small_map.mount_at
    )
    with open(blockmap.sidecar(path), "wb") as file:
        file.write(blockmap.encode(made))
    return made


@contextlib.contextmanager
def serving(folder: str, model: str) -> Iterator[str]:
    """Run the origin while the block runs; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [sys.executable, ORIGIN, folder, str(port), *map(str, MODELS[model])]
    process = subprocess.Popen(argv)
    try:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if time.monotonic() > deadline_s or process.poll() is not None:
                    raise
                threading.Event().wait(0.05)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.kill()
        process.wait()


def run(bench: Bench, way: str, image: str, base: str) -> float:
    """Start the program once, in one way; return the seconds that it took."""
    folder = bench.fresh()
    url = f"{base}{image}.sqsh"
    lists = os.path.join(bench.folder, f"lists-{image}")
    cache = os.path.join(folder, "cache")
    os.mkdir(cache, 0o700)
    if way == SECOND and os.path.isdir(lists):
        shutil.copytree(lists, os.path.join(cache, "hot"))
    if way == AGAIN:
        block_map = bench.maps[image]
        done = bring(url, block_map, cache, [BlockRun(0, block_map.blocks)])
        assert not done.missing, done
        drop_pages(os.path.join(cache, blockmap.identity(block_map), "image"))
    drop_pages(bench.images[image])
    try:
        began_s = time.monotonic()
        took_s = _timed(bench, way, (image, url, cache, folder), began_s)
        if way == FIRST and not os.path.isdir(lists):
            shutil.copytree(os.path.join(cache, "hot"), lists)
        return took_s
    finally:
        shutil.rmtree(folder)


def _timed(bench: Bench, way: str, place: tuple[str, str, str, str], began_s: float) -> float:
    image, url, cache, folder = place
    if way in (FIRST, SECOND, AGAIN):
        begun = begin()
        prepared = prepare(url, cache, "bench", os.uname().machine)
        assert prepared.plan.way == {FIRST: "first", SECOND: "hot", AGAIN: "local"}[way], prepared.plan
        plan = InsidePlan(
            image_url=url,
            block_map=prepared.block_map,
            cache_root=cache,
            hot=prepared.plan.hot,
            serve_options=prepared.options,
        )
        took_s, start_of = job(bench, plan, folder, began_s, prepared, begun)
        bench.notes[f"{way} {image}"] = start_of
        return took_s
    if way == LAZY:
        options = ServeOptions(limits=FetchLimits(run_bytes=1 << 20))
        plan = InsidePlan(image_url=url, block_map=bench.maps[image], cache_root=cache, serve_options=options)
        return job(bench, plan, folder, began_s)[0]
    path = bench.images[image]
    if way in (ONE, SIXTEEN):
        kept = os.path.join(folder, "image.sqsh") if image == "small" else None
        download(url, bench.maps[image].size_bytes, 1 if way == ONE else 16, kept)
        path = kept or bench.images["small"]
    plan = InsidePlan(image_url=path, block_map=bench.maps[image], cache_root=cache, served=False)
    return job(bench, plan, folder, began_s)[0]


def job(
    bench: Bench,
    plan: InsidePlan,
    folder: str,
    began_s: float,
    prepared: Prepared | None = None,
    begun: Begun | None = None,
) -> tuple[float, dict[str, Any]]:
    """Run the program in the place that a plan describes; return the seconds since `began_s`, and what the image did."""
    inside = start(plan, on_problem=lambda sentence: print(f"! {sentence}", flush=True), begun=begun)
    try:
        python = os.path.join(bench.environment, "bin", "python")
        argv = inside.command([python, "-c", JOB, os.path.join(folder, "store")], folder)
        env = {**inside.environment(os.environ), "PYTHONDONTWRITEBYTECODE": "1"}
        env.pop("PYTHONPATH", None)
        said = subprocess.run(argv, env=env, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True).stdout
        took_s = time.monotonic() - began_s
        assert said.startswith(bench.environment), f"torch came from {said!r}"
        if prepared is None:
            return took_s, {}
        recording, summary = close(inside, prepared, "step")
        keep(prepared.store, prepared.key, [recording])
        found = {
            name: getattr(summary, name)
            for name in ("hot_list_bytes", "touched_bytes", "hit_rate", "waited", "waited_s")
        }
        return took_s, {**found, "fetched_bytes": sum(each.good_bytes for each in summary.sources)}
    finally:
        inside.stop()


def download(url: str, size_bytes: int, connections: int, path: str | None) -> None:
    """Fetch a file; `path`: None throws it away."""
    source = origin(url, 0, FetchLimits(width=connections))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600) if path else -1
    local = threading.local()
    piece = RANGE_BYTES if connections > 1 else 64 << 20

    def fetch(offset: int) -> None:
        if not hasattr(local, "data"):
            local.data = memoryview(bytearray(piece))
        data = local.data[: min(piece, size_bytes - offset)]
        source.read_into(offset, [data], Cancellation())
        if descriptor >= 0:
            os.pwrite(descriptor, data, offset)

    try:
        with ThreadPoolExecutor(connections) as pool:
            list(pool.map(fetch, range(0, size_bytes, piece)))
    finally:
        source.close()
        if descriptor >= 0:
            os.close(descriptor)


def drop_pages(path: str) -> None:
    """Take a file out of the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def measure(bench: Bench, args: argparse.Namespace) -> dict[tuple[str, str, str], list[float]]:
    """Return the seconds by model, image and way, a value per round."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for number in range(args.rounds):
        for model in args.models:
            with serving(os.path.join(bench.folder, "origin"), model) as base:
                for image in bench.images:
                    ways = [way for way in WAYS if way in args.ways and (image == "small" or way not in ONLY_SMALL)]
                    for way in ways:
                        if number and (image, way) in SLOW:
                            continue
                        took_s = run(bench, way, image, base)
                        found.setdefault((model, image, way), []).append(took_s)
                        print(f"round {number}  {model}  {image:7} {way:8} {took_s:7.2f} s", flush=True)
    return found


def report(bench: Bench, found: dict[tuple[str, str, str], list[float]], args: argparse.Namespace) -> None:
    """Print medians and ratios, and the JSON."""
    cases = []
    print(f"\n{'model':6}{'image':9}{'way':9}{'s':>8}{'of local':>10}{'second is faster':>18}")
    for (model, image, way), values in found.items():
        middle = statistics.median(values)
        local, second = (statistics.median(found.get((model, image, each), [float("nan")])) for each in (LOCAL, SECOND))
        print(f"{model:6}{image:9}{way:9}{middle:8.2f}{middle / local:10.2f}{middle / second:17.2f}x")
        cases.append({"model": model, "image": image, "way": way, "seconds": spread(values)})
    for name, note in bench.notes.items():
        print(f"{name}: {note}")
    judged = ratios(found)
    for each in judged:
        print("{model:6}{image:9}{ratio:18}{value:7.2f}  aim: {aim} {limit:<6} {met}".format(**each))
    sizes = {name: each.size_bytes for name, each in bench.maps.items()}
    print_result(
        "image_start", cases, ratios=judged, models=MODELS, sizes=sizes, notes=bench.notes, rounds=args.rounds,
        compression=args.compress,
    )  # fmt: skip


def ratios(found: dict[tuple[str, str, str], list[float]]) -> list[dict[str, Any]]:
    """Return what was aimed at and what was reached, by medians."""
    judged = []
    for name, way, other, aim, limits in AIMS:
        for (model, image), limit in limits.items():
            values, others = (found.get((model, image, each)) for each in (way, other))
            if values and others:
                value = statistics.median(values) / statistics.median(others)
                met = value <= limit if aim == "at most" else value >= limit
                judged.append(
                    {
                        "model": model,
                        "image": image,
                        "ratio": name,
                        "value": round(value, 3),
                        "aim": aim,
                        "limit": limit,
                        "met": met,
                    }
                )
    return judged


def count_files(folder: str) -> int:
    """Return how many files a folder holds."""
    return sum(len(names) for _path, _folders, names in os.walk(folder))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one round, model a, the small image only")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--padded", type=float, default=20.0, help="GB of the padded image; 0: none")
    parser.add_argument("--environment", default=sys.prefix, help="a venv with torch")
    parser.add_argument("--compress", choices=["zstd", "lz4"], default="zstd")
    parser.add_argument("--folder", default=None, help="where to write; the default is the temporary folder")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.models, args.padded = 1, ["a"], 0.0
    return args


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    args = parse_arguments()
    unwind_on_sigterm()
    files = count_files(args.environment)
    if files < FEWEST_FILES:
        print(f"! {args.environment} has {files} files; a real environment has {FEWEST_FILES} or more", flush=True)
    folder = tempfile.mkdtemp(prefix="image-bench-", dir=args.folder)
    try:
        bench = Bench(folder, os.path.normpath(args.environment), args.compress)
        bench.prepare(args.padded)
        print(f"{files} files, {bench.maps['small'].size_bytes / 1e6:.0f} MB as an image", flush=True)
        report(bench, measure(bench, args), args)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
