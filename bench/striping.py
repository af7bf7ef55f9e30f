"""Reading from many paced connections: ours against fsspec and a single stream.

    python bench/striping.py --rounds 5

A real nginx serves one file on several ports, each connection held to a rate by the kernel, as object stores and data nodes do
to theirs. For each number of streams, each side reads the same number of 8 MiB ranges per stream, dealt over the ports: ours
into one buffer that was made before, fsspec by `cat_ranges` with as many at once. A round is every side once, the order changing
from round to round; figures are medians of rounds. "Ideal" is streams times the rate. Needs nginx. The last line of standard
output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidebyside import print_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from servers.nginx import running_nginx

from robust_run.store.digests import digest
from robust_run.store.engine import Hedge, transfer
from robust_run.store.jobs import ReadJob
from robust_run.store.opening import open_store

UNIT_BYTES = 8 << 20
OURS, FSSPEC, SINGLE = "robust_run", "fsspec", "single_stream"
NAME = "file"

Range = tuple[int, int]
"""First byte, and the one after the last."""


class Ground:
    """The served file, and the buffer that ours and the single stream read into."""

    def __init__(self, urls: list[str], size_bytes: int) -> None:
        self.urls = urls
        self.buffer = memoryview(bytearray(size_bytes))
        self.buffer[:] = bytes(size_bytes)  # faulted in, as a model's memory is when it is loaded into

    def ours(self, streams: int, ranges: list[Range]) -> Callable[[], object]:
        """Return a function that reads the ranges with the engine."""
        stores = [open_store(url) for url in self.urls]

        def read() -> None:
            jobs = (
                ReadJob(stores[number % len(stores)], NAME, first, [self.buffer[first:end]])
                for number, (first, end) in enumerate(ranges)
            )
            transfer(jobs, threads=streams, hedge=Hedge())
            for store in stores:
                store.close()

        return read

    def fsspec(self, streams: int, ranges: list[Range]) -> Callable[[], object]:
        """Return a function that reads them with fsspec, as bytes."""
        import fsspec

        files = fsspec.filesystem("http", skip_instance_cache=True)
        urls = [f"{self.urls[number % len(self.urls)]}/{NAME}" for number in range(len(ranges))]
        firsts, ends = [first for first, _ in ranges], [end for _, end in ranges]
        return lambda: files.cat_ranges(urls, firsts, ends, batch_size=streams, on_error="raise")

    def single(self, _streams: int, ranges: list[Range]) -> Callable[[], object]:
        """Return a function that reads some of them one after the other, over one connection."""

        def read() -> None:
            asked = urllib.request.Request(f"{self.urls[0]}/{NAME}", headers={"Range": f"bytes=0-{ranges[-1][1] - 1}"})
            with urllib.request.urlopen(asked, timeout=60) as reply:
                at = 0
                while got := reply.readinto(self.buffer[at : at + UNIT_BYTES]):
                    at += got

        return read


def timed(read: Callable[[], object]) -> tuple[float, float]:
    """Return seconds, and seconds of CPU of this process."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    read()
    return time.perf_counter() - began_s, time.process_time() - cpu_s


def measure(
    args: argparse.Namespace, ground: Ground, content_digest: bytes
) -> dict[str, dict[int, list[dict[str, float]]]]:
    """Return the rates of all rounds: by side and number of streams."""
    sides = {OURS: ground.ours, FSSPEC: ground.fsspec, SINGLE: ground.single}
    found: dict[str, dict[int, list[dict[str, float]]]] = {side: {} for side in sides}
    for number in range(args.rounds):
        for streams in args.streams:
            ranges = [(at, at + UNIT_BYTES) for at in range(0, streams * args.units * UNIT_BYTES, UNIT_BYTES)]
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            for side in order:
                if side == SINGLE and streams != args.streams[0]:
                    continue
                if side == OURS:
                    ground.buffer[:] = bytes(len(ground.buffer))
                wall_s, cpu_s = timed(sides[side](streams, ranges))
                size = ranges[-1][1]
                rate = size / wall_s / 1e9
                found[side].setdefault(streams, []).append({"gb_per_s": rate, "cpu_s_per_gib": cpu_s / size * 2**30})
                print(f"  round {number + 1}: {streams:3d} streams, {side:<14}{rate:7.3f} GB/s", flush=True)
            if streams == args.streams[-1]:
                ours_again = ground.ours(streams, ranges)
                ours_again()
                if digest(ground.buffer) != content_digest:
                    raise SystemExit("what was read is not what was served")
    return found


def report(args: argparse.Namespace, found: dict[str, dict[int, list[dict[str, float]]]]) -> None:
    """Print a line per number of streams, and the line of JSON."""

    def middle(side: str, streams: int, what: str = "gb_per_s") -> float:
        return statistics.median(round_[what] for round_ in found[side][streams])

    single = middle(SINGLE, args.streams[0])
    cases: list[dict[str, Any]] = []
    print(
        f"\n  medians of {args.rounds} rounds; {args.rate_mb_per_s} MB/s a connection, {args.ports} ports;"
        f" single stream {single:.3f} GB/s"
    )
    print("  streams    ours  fsspec   ideal  ours/ideal  ours/fsspec  ours/single  CPU s/GiB ours, fsspec")
    for streams in args.streams:
        ours, peer, ideal = middle(OURS, streams), middle(FSSPEC, streams), streams * args.rate_mb_per_s / 1e3
        pairs = zip(found[OURS][streams], found[FSSPEC][streams], strict=True)
        ratio = statistics.median(mine["gb_per_s"] / theirs["gb_per_s"] for mine, theirs in pairs)
        cpu = [middle(side, streams, "cpu_s_per_gib") for side in (OURS, FSSPEC)]
        print(
            f"  {streams:7d}{ours:8.3f}{peer:8.3f}{ideal:8.3f}{ours / ideal:12.3f}{ratio:13.2f}{ours / single:13.1f}"
            f"{cpu[0]:10.2f} {cpu[1]:.2f}"
        )
        cases.append(
            {
                "streams": streams, "ours_gb_per_s": ours, "fsspec_gb_per_s": peer, "ideal_gb_per_s": ideal,
                "of_ideal": ours / ideal, "over_fsspec": ratio, "over_single": ours / single,
                "ours_cpu_s_per_gib": cpu[0], "fsspec_cpu_s_per_gib": cpu[1],
            }
        )  # fmt: skip
    print_result("striping", cases, rounds=args.rounds, rate_mb_per_s=args.rate_mb_per_s, ports=args.ports)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 32], help="default 1 4 16 32")
    parser.add_argument("--units", type=int, default=6, help="ranges of 8 MiB per stream (default 6)")
    parser.add_argument("--ports", type=int, default=4, help="of the server (default 4)")
    parser.add_argument("--rate-mb-per-s", type=int, default=50, help="of a connection (default 50)")
    args = parser.parse_args()
    if min(args.rounds, args.units, args.ports, args.rate_mb_per_s, *args.streams) < 1:
        parser.error("all numbers must be at least 1")
    size_bytes = max(args.streams) * args.units * UNIT_BYTES
    with tempfile.TemporaryDirectory(prefix="robust-striping-") as folder:
        content = os.urandom(UNIT_BYTES) * (size_bytes // UNIT_BYTES)
        Path(folder, NAME).write_bytes(content)
        Path(folder).chmod(0o755)
        content_digest = digest(content)
        del content
        with running_nginx(Path(folder), ports=args.ports, bytes_per_s=args.rate_mb_per_s * 10**6) as urls:
            report(args, measure(args, Ground(urls, size_bytes), content_digest))


if __name__ == "__main__":
    main()
