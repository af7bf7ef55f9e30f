"""The plain sequence on one node: download the image 16-way, unpack it, install, start torchrun in it. For `whole_start`.

Notes the moment at which each phase was over, in seconds of the monotonic clock, a line each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from image_start import download

PYTHON = "/opt/python/bin/python3"
SEEN = ("/proc", "/sys", "/dev")
"""Of this machine, as containers have it."""


def main() -> None:
    """Do it all, in this order, and end as torchrun does."""
    args = _arguments()
    notes = Path(args.folder) / f"node-{args.node}"

    def note(phase: str) -> None:
        with notes.open("a", encoding="ascii") as file:
            file.write(f"{phase} {time.monotonic():.6f}\n")

    private = Path(args.private)
    root = private / "root"
    note("begun")
    if not args.ready:
        bring(args, private, root, note)
    env = {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": "/opt/python/bin:/bin",
        "LD_LIBRARY_PATH": "/opt/python/lib",
        "TMPDIR": "/tmp",
        "HOME": "/root",
    }
    inside = [shutil.which("chroot") or "chroot", str(root)]
    if args.cache and not args.ready:
        (root / "uv-cache").mkdir()
        subprocess.run(["mount", "--bind", args.cache, str(root / "uv-cache")], check=True)
    if not args.ready:
        subprocess.run([*inside, *args.setup.split(), "--cache-dir", "/uv-cache"], env=env, check=True)
    note("packages")
    env["WHOLE_START_CHECKPOINT"] = args.checkpoint
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nnodes", str(args.nodes), "--nproc-per-node", "1"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", args.endpoint, "--rdzv-id", "bench"]
    done = subprocess.run([*inside, *torchrun, *meeting, f"{args.folder}/train.py"], env=env, check=False)
    note("ended")
    sys.exit(done.returncode)


def bring(args: argparse.Namespace, private: Path, root: Path, note: Callable[[str], None]) -> None:
    """Download and unpack the image, and show in it what containers have of this machine."""
    image = private / "image.sqsh"
    download(f"{args.origin}{args.image}.sqsh", args.image_bytes, 16, None if args.throw_away else str(image))
    note("image")
    subprocess.run(
        ["unsquashfs", "-q", "-n", "-d", str(root), args.small if args.throw_away else str(image)], check=True
    )
    note("unpacked")
    for path in (*SEEN, args.folder):
        (root / path[1:]).mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--rbind", path, str(root / path[1:])], check=True)
    for name in ("hosts", "resolv.conf"):
        (root / "etc" / name).write_bytes(Path("/etc", name).read_bytes())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("folder", "private", "origin", "image", "small", "setup", "endpoint", "cache", "checkpoint"):
        parser.add_argument(f"--{name}", default="")
    for name in ("node", "nodes", "image-bytes"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--throw-away", action="store_true")
    parser.add_argument("--ready", action="store_true", help="all is there: only torchrun")
    return parser.parse_args()


if __name__ == "__main__":
    main()
