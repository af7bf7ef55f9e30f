"""How often an image, a snapshot and a checkpoint leave their origins for a job of 8 nodes, and for a standby that comes later.

    python bench/origin_bytes.py                       # some minutes
    python bench/origin_bytes.py --nodes 2 --image-mb 60 --ways first

Nodes are hosts in network namespaces (tests/hosts.py; needs root), each with a cache of its own; one more host is the origin,
modelled (20 ms to the first byte, 50 MB/s a connection, 500 MB/s for all), which notes who asks for what. The image holds this
interpreter and files of noise, of which the program reads every third; the snapshot is another file of noise. Ways:

    first     no hot list: all of the image is downloaded while the program starts
    second    on nodes that have nothing, with the hot list of the first
    set-up    the second, with --setup (built before by another job) and --ckpt-dir: all three come from the origin

The checkpoint is fetched ahead, and not read. In each, a standby joins when all of the image is on all nodes. A figure is the
bytes that left the origin, over the size of what was asked for; for the image, up to when the last node had all of it, before and
after the standby. On a machine so busy that nodes stand still for seconds, they take each other for gone, and ask the origin.
What left it again is told apart: for all nodes (before they have met), and for some. `--log` keeps what the origin noted.
The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from env_ways import say
from hosts import Cluster, Host, supported
from origin_log import Counted
from power_loss import JournalSoFar, wait
from sidebyside import print_result, unwind_on_sigterm
from whole_start_ground import PYTHON, TESTS, begin_root, finish_root

from robust_run.prefetch import blockmap
from robust_run.prefetch.cache import Cache
from robust_run.prefetch.image.build import BuildOptions, build

FIRST, SECOND, SETUP = WAYS = ("first", "second", "set-up")
LIMIT_S = 900.0
AIM = 1.1
MODEL = ("20", "50", "500")
ORIGIN_PORT, PORT = 8080, 29400
FILE_BYTES = 4 << 20
EXTRA_BYTES = 40 << 20
TRAIN = """
import os, sys, time
folder, files = sys.argv[1:]
for number in range(0, int(files), 3):
    with open(f"/data/{number:04}", "rb") as file:
        while file.read(1 << 20): pass
if os.path.exists("/extra"):
    open("/extra", "rb").read()
open(f"{folder}/read-{os.environ['RANK']}", "w").close()
while not os.path.exists(f"{folder}/done"):
    time.sleep(0.1)
"""


@dataclass
class Material:
    """What the origin serves."""

    folder: Path
    image_mb: int
    checkpoint_mb: int
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def origin(self) -> Path:
        """Its folder."""
        return self.folder / "origin"

    @property
    def files(self) -> int:
        """How many files of noise the image has."""
        return max(1, self.image_mb * 1_000_000 // FILE_BYTES)

    def make(self) -> None:
        """Make the image and the checkpoint."""
        self.origin.mkdir(parents=True, exist_ok=True)
        image = self.origin / "train.sqsh"
        if not image.exists():
            root = self.folder / "rootfs"
            shutil.rmtree(root, ignore_errors=True)
            begin_root(root)
            finish_root(root)
            (root / "data").mkdir()
            for number in range(self.files):
                (root / f"data/{number:04}").write_bytes(os.urandom(FILE_BYTES))
            build(str(root), str(image), BuildOptions(compression="zstd"))
            shutil.rmtree(root)
        checkpoint = self.origin / "ckpt"
        if not checkpoint.exists():
            from made_checkpoints import make_checkpoint

            content = {f"part-{number}": os.urandom(8_000_000) for number in range(max(1, self.checkpoint_mb // 8))}
            make_checkpoint([checkpoint / "step-7"], content, step=7)
        self.sizes["image"] = image.stat().st_size
        self.sizes["checkpoint"] = max(1, self.checkpoint_mb // 8) * 8_000_000

    def setup(self) -> str:
        """Return the commands of the set-up."""
        return f"""{PYTHON} -c 'open("/extra", "wb").write(__import__("os").urandom({EXTRA_BYTES}))'"""


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Ground:
    """A cluster whose nodes have nothing, and the origin."""

    def __init__(self, material: Material, cluster: Cluster, folder: Path, way: str, hot: Path) -> None:
        self.material, self.folder, self.way, self.hot = material, folder, way, hot
        self.map = blockmap.decode((material.origin / "train.sqsh.blocks.json").read_bytes())
        *self.nodes, self.standby, origin = cluster
        self.url = f"http://{origin.address}:{ORIGIN_PORT}"
        self.log = folder / "asked"
        (folder / "train.py").write_text(TRAIN, encoding="utf-8")
        served = [str(material.origin), str(ORIGIN_PORT), *MODEL, "0.0.0.0", str(self.log)]
        origin.start([sys.executable, str(TESTS / "servers/model_origin.py"), *served], name="origin")
        wait(self.log.exists, LIMIT_S, 0.1)

    def start(self, host: Host) -> Any:
        """Start robust-run on a node."""
        cache = host.private / "cache"
        cache.mkdir(mode=0o700)
        if self.hot.exists():
            shutil.copytree(self.hot, cache / "hot")
        argv = [sys.executable, "-m", "robust_run", "--nnodes", str(len(self.nodes)), "--nproc-per-node", "1"]
        argv += ["--rdzv-backend", "c10d", "--rdzv-id", "bench", "--rdzv-endpoint", f"{self.nodes[0].address}:{PORT}"]
        argv += ["--log-dir", f"{self.folder}/runs", "--run-id", "bench", "--standby", "1", "--record-window", "20"]
        argv += ["--image", f"{self.url}/train.sqsh", "--image-cache", str(cache)]
        if self.way == SETUP:
            argv += ["--setup", self.material.setup(), "--setup-store", f"{self.url}/store"]
            argv += ["--ckpt-dir", f"{self.url}/ckpt"]
        argv += ["--bind", str(TESTS.parent), f"{self.folder}/train.py", str(self.folder), str(self.material.files)]
        return host.start(argv, env=self.env(cache), cwd=self.folder, name="robust-run")

    def build_setup(self) -> None:
        """Have a job of one node build the set-up, into the folder that the origin serves, and forget that node's cache."""
        store, host = self.material.origin / "store", self.standby
        shutil.rmtree(store, ignore_errors=True)
        (self.folder / "done").touch()
        cache = host.private / "cache"
        cache.mkdir(mode=0o700)
        argv = [sys.executable, "-m", "robust_run", "--image", f"{self.url}/train.sqsh", "--image-cache", str(cache)]
        argv += ["--setup", self.material.setup(), "--setup-store", str(store), "--log-dir", f"{self.folder}/runs"]
        argv += ["--bind", str(TESTS.parent), f"{self.folder}/train.py", str(self.folder), str(self.material.files)]
        host.run(argv, env=self.env(cache), cwd=self.folder, timeout_s=LIMIT_S)
        for path in (self.folder / "done", self.folder / "read-0"):
            path.unlink()
        shutil.rmtree(cache)
        self.log.write_text("")
        self.material.sizes["snapshot"] = _size(store)

    def env(self, cache: Path) -> dict[str, str]:
        """Return the variables of all launchers."""
        return {
            "ROBUST_TOKEN": "the secret of a bench",
            "PYTHON_EXEC": PYTHON,
            "OMP_NUM_THREADS": "1",
            "ROBUST_SETUP_CACHE": str(cache),
        }

    def wait_for(self, what: str, is_so: Any, launchers: list[Any]) -> None:
        """Wait until something is so."""
        wait(lambda: is_so() or any(each.poll() is not None for each in launchers), LIMIT_S, 0.2)
        if not is_so():
            ended = [each for each in launchers if each.poll() is not None] or launchers[:1]
            said = "\n".join(f"--- {each.poll()}: {each.err[-3000:]}" for each in ended)
            raise SystemExit(f"not {what} within {LIMIT_S:g} s:\n{said}")

    def has_all(self, host: Host) -> bool:
        """Whether a node has all of the image in its cache."""
        if not (host.private / "cache" / blockmap.identity(self.map)).exists():
            return False
        cache = Cache(str(host.private / "cache"), self.map)
        cache.scan()
        present = cache.present()
        cache.close()
        return present == self.map.blocks

    def counted(self) -> Counted:
        """Return the bytes that have left the origin, by what they are of."""
        return Counted.of(self.log.read_text())


def measure(material: Material, way: str, hot: Path, nodes: int, kept: Path | None) -> list[dict[str, Any]]:
    """One job, and what it has taken from the origin."""
    folder = material.folder / f"run-{way}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    found = []
    try:
        with Cluster(nodes + 2, folder) as cluster:
            ground = Ground(material, cluster, folder, way, hot)
            if way == SETUP:
                ground.build_setup()
            launchers = [ground.start(host) for host in ground.nodes]
            ground.wait_for("started", lambda: len(list(folder.glob("read-*"))) == nodes, launchers)
            ground.wait_for("all there", lambda: all(map(ground.has_all, ground.nodes)), launchers)
            found += _say(material, way, nodes, ground.counted())
            launchers.append(ground.start(ground.standby))
            path = folder / "runs" / "bench" / "journal.jsonl"
            ground.wait_for("joined", lambda: len(JournalSoFar(path).events("node_joined")) > nodes, launchers)
            ground.wait_for("all there", lambda: ground.has_all(ground.standby), launchers)
            found += _say(material, f"{way} + standby", nodes + 1, ground.counted())
            (folder / "done").touch()
            for each in launchers:
                code = each.wait(LIMIT_S)
                assert code == 0, f"{each.args} ended with {code}: {each.err[-2000:]}"
            if not hot.exists():
                shutil.copytree(ground.nodes[0].private / "cache" / "hot", hot)
    finally:
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
            for path in (folder / "asked", *folder.glob("node-*/*robust-run*")):
                with contextlib.suppress(OSError):
                    shutil.copy(path, kept / f"{way}-{path.parent.name}-{path.name}")
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _say(material: Material, way: str, nodes: int, counted: Counted) -> list[dict[str, Any]]:
    found = []
    for kind, size in material.sizes.items():
        if counted.size_bytes[kind]:
            times, again = counted.size_bytes[kind] / size, counted.again(kind, nodes)
            found.append({"way": way, "nodes": nodes, "what": kind, "times": round(times, 3), "aim": AIM})
            found[-1] |= {"again_all_mb": round(again[0] / 1e6, 1), "again_some_mb": round(again[1] / 1e6, 1)}
            say(
                f"{way:20} {nodes} nodes: {times:.2f} of the {kind} left the origin (aim {AIM}; {size / 1e6:.0f} MB);"
                f" again: {again[0] / 1e6:.1f} MB for all, {again[1] / 1e6:.1f} MB for some"
            )
    return found


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--image-mb", type=int, default=300)
    parser.add_argument("--checkpoint-mb", type=int, default=160)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--folder", default=None, help="where to write, and keep what is made; default: a temporary one"
    )
    parser.add_argument("--log", default=None, metavar="FOLDER", help="keep what the origin noted, and what nodes said")
    return parser.parse_args()


@contextlib.contextmanager
def folder_of(args: argparse.Namespace) -> Iterator[Path]:
    """The folder for all that is made."""
    folder = Path(args.folder or tempfile.mkdtemp(prefix="origin-bytes-"))
    try:
        yield folder
    finally:
        if not args.folder:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    args = parse_arguments()
    unwind_on_sigterm()
    if reason := supported():
        raise SystemExit(reason)
    with folder_of(args) as folder:
        material = Material(folder, args.image_mb, args.checkpoint_mb)
        material.make()
        hot = folder / "hot"
        if args.ways[0] == FIRST:
            shutil.rmtree(hot, ignore_errors=True)
        cases = []
        for way in args.ways:
            cases += measure(material, way, hot, args.nodes, Path(args.log) if args.log else None)
        print_result("origin_bytes", cases, sizes=material.sizes, model=MODEL)


if __name__ == "__main__":
    main()
