"""Reading a checkpoint through `robust ckpt mount` against reading a plain file: one reader and four, direct I/O and page cache.

    python bench/fuse.py --size 1.0 --rounds 5

The checkpoint and the plain file hold the same bytes and lie in the page cache. Each reader is a process that reads all of it in
pieces of 1 MiB into one buffer. Ways are measured in turns:

    plain            the plain file
    direct I/O       the mount with --direct-io: each piece is a request to the mount's process, verified, copied once
    page cache       the mount without, its pages dropped before: what the first reader gets
    page cache again the same once more: what further readers get, from the kernel

A figure is GB/s (1e9 bytes) of all readers together; its ratio is to the plain file of the same round. The last line of standard
output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from sidebyside import print_result, spread, unwind_on_sigterm

from robust_run.ckpt_io.mount.manage import ServedMount, mount
from robust_run.ckpt_io.mount.types import MountOptions
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, write_file

PLAIN, DIRECT, FIRST, AGAIN = "plain", "direct I/O", "page cache", "page cache again"
WAYS = (PLAIN, DIRECT, FIRST, AGAIN)
LIMIT_S = 300.0

READER = """
import os, sys, time
buffer = bytearray(1 << 20)
descriptor = os.open(sys.argv[1], os.O_RDONLY)
if sys.argv[2] == "drop":
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
print("ready", flush=True)
sys.stdin.readline()
began, count = time.perf_counter(), 0
while got := os.readv(descriptor, [buffer]):
    count += got
print(count, time.perf_counter() - began, flush=True)
"""


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    args = parse_arguments()
    unwind_on_sigterm()
    folder = tempfile.mkdtemp(prefix="fuse-bench-", dir=args.folder)
    try:
        size_bytes = int(args.size * 1e9) >> 20 << 20
        plain = prepare(folder, size_bytes)
        with mounted(folder, "direct", True) as direct, mounted(folder, "cached", False) as cached:
            paths = {PLAIN: plain, DIRECT: f"{direct.point}/data", FIRST: f"{cached.point}/data"}
            found = measure(paths, args, size_bytes)
    finally:
        shutil.rmtree(folder)
    report(found, size_bytes, args)


def prepare(folder: str, size_bytes: int) -> str:
    """Write the checkpoint and the plain file; return the latter's path."""
    block = os.urandom(64 << 20)
    data = memoryview(block * (size_bytes // len(block) + 1))[:size_bytes]
    plan = begin_save(f"{folder}/run/data", durable=False)
    commit(plan, [write_file(plan, 0, "data", [FilePiece(0, data)], size_bytes)])
    path = f"{folder}/plain"
    with open(path, "wb") as file:
        file.write(data)
    return path


@contextlib.contextmanager
def mounted(folder: str, name: str, direct_io: bool) -> Iterator[ServedMount]:
    """Mount the folder of the checkpoint while the block runs."""
    options = MountOptions(url=f"{folder}/run", point=f"{folder}/{name}", direct_io=direct_io, lifeline=True)
    with mount(options, print) as made:
        yield made


def measure(paths: dict[str, str], args: argparse.Namespace, size_bytes: int) -> dict[tuple[str, int], list[float]]:
    """Return the seconds of the slowest reader, by way and number of readers, a value per round."""
    found: dict[tuple[str, int], list[float]] = {(way, readers): [] for readers in args.readers for way in WAYS}
    for number in range(args.rounds + 1):
        for readers in args.readers:
            for way in WAYS if number % 2 else (FIRST, AGAIN, DIRECT, PLAIN):  # AGAIN always comes after FIRST
                took_s = read(paths.get(way, paths[FIRST]), readers, way == FIRST, size_bytes)
                if number:  # the first round warms everything up
                    found[way, readers].append(took_s)
                    print(f"{way:17} x{readers}  {readers * size_bytes / took_s / 1e9:6.2f} GB/s", flush=True)
    return found


def read(path: str, readers: int, drop: bool, size_bytes: int) -> float:
    """Let so many processes read a file at once; return the seconds that the slowest took."""
    argv = [sys.executable, "-c", READER, path, "drop" if drop else "keep"]
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(readers):
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        times = []
        for process in processes:
            said, _ = process.communicate(timeout=LIMIT_S)
            count, took_s = said.split()
            assert int(count) == size_bytes, f"{path}: {count} bytes read of {size_bytes}"
            times.append(float(took_s))
    return max(times)


def report(found: dict[tuple[str, int], list[float]], size_bytes: int, args: argparse.Namespace) -> None:
    """Print medians, ratios to the plain file, and the JSON."""
    cases: list[dict[str, Any]] = []
    print(f"\n{'':17} readers   GB/s  per reader   of plain")
    for (way, readers), times in found.items():
        rates = [readers * size_bytes / took_s / 1e9 for took_s in times]
        ratios = [base / took_s for took_s, base in zip(times, found[PLAIN, readers], strict=True)]
        middle = statistics.median(rates)
        print(f"{way:17} {readers:7} {middle:6.2f} {middle / readers:11.2f} {statistics.median(ratios):10.2f}")
        cases.append({"way": way, "readers": readers, "gb_per_s": spread(rates), "of_plain": spread(ratios)})
    print_result("fuse", cases, size_bytes=size_bytes, rounds=args.rounds)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--size", type=float, default=1.0, help="GB to read")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--readers", type=int, nargs="+", default=[1, 4])
    parser.add_argument(
        "--folder", default=None, help="where to write 2x the size; the default is the temporary folder"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
