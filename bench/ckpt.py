"""Loading and saving a checkpoint on local disk, against the ways people have today, all of them in turns.

    python bench/ckpt.py --rounds 5 --folder /ssd/bench

One state dict (24 large tensors, 200 small ones; --gb of them in all) is saved and loaded by each contender in each round, the
order turning from round to round; a ratio is the median of the rounds' ratios. A load is over when the bytes are in
memory: those that can, fill tensors that exist (ours, DCP); others may use fresh memory (torch.load, runai-model-streamer,
fastsafetensors), and those that only map a file are made to touch every page. Ours verifies every byte; none of the others
does. A save is over when it is on the disk: all of them sync. Cold: the files were dropped from the page cache. `raw` is what
disk and memory allow: threads that read the same bytes in pieces of 8 MiB into memory that exists (the best of two numbers
of threads). A contender that is not installed is named as missing. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from ckpt_contenders import CONTENDERS, HASHED, OURS, RAW, RUNAI, Bench, Contender, State
from sidebyside import print_result


def state_of(size_bytes: int) -> State:
    generator = torch.Generator().manual_seed(1)
    small = 200 * 4096 * 4
    rows = max(1, (size_bytes - small) // 24 // (4096 * 4))
    large = torch.randn(rows, 4096, generator=generator)
    state = {f"layers.{i}.weight": large.roll(i, 0) for i in range(24)}
    return state | {f"layers.{i}.bias": large[0].roll(i) for i in range(200)}


def present(contenders: list[Contender]) -> Iterator[Contender]:
    """Yield those whose package is here; name the others."""
    for contender in contenders:
        try:
            importlib.import_module(contender.needs)
        except ImportError as error:
            print(f"  missing: {contender.name} ({error})", flush=True)
        else:
            yield contender


def forget(bench: Bench, name: str) -> None:
    """Drop a contender's files from the page cache."""
    for folder, _, files in os.walk(bench.path(name)):
        for file in files:
            descriptor = os.open(os.path.join(folder, file), os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(bench: Bench, action: Callable[[Bench], None]) -> float:
    began_s = time.perf_counter()
    action(bench)
    took_s = time.perf_counter() - began_s
    bench.kept.clear()
    return took_s


def check(bench: Bench, name: str) -> None:
    """What was loaded is what was saved."""
    loaded = bench.kept[0] if bench.kept else bench.into
    for key, tensor in bench.state.items():
        if not torch.equal(loaded[key], tensor):
            raise SystemExit(f"{name} loaded something else as {key}")


def save_all(bench: Bench, contenders: list[Contender], number: int, times: dict[str, list[float]]) -> None:
    for contender in turned(contenders, number):
        if contender.save is not None:
            shutil.rmtree(bench.path(contender.name), ignore_errors=True)
            os.sync()
            times.setdefault(contender.name, []).append(timed(bench, contender.save))


def load_all(
    bench: Bench, contenders: list[Contender], number: int, times: dict[str, list[float]], *, cold: bool
) -> None:
    for contender in turned(contenders, number):
        if contender.load is None:
            continue
        if cold:
            forget(bench, contender.files)
        else:  # once untimed: whatever frees page cache meanwhile must not make one contender's warm load a cold one
            contender.load(bench)
            bench.kept.clear()
        times.setdefault(contender.name, []).append(timed(bench, contender.load))


def turned(contenders: list[Contender], number: int) -> list[Contender]:
    cut = number % len(contenders)
    return contenders[cut:] + contenders[:cut]


def verify_all(bench: Bench, contenders: list[Contender]) -> None:
    """One load each, untimed: whether they load the right thing, and to warm up what is made once."""
    for contender in contenders:
        if contender.load is not None:
            for tensor in bench.into.values():
                tensor.zero_()
            contender.load(bench)
            check(bench, contender.name)
            bench.kept.clear()


def ratio(times: dict[str, list[float]], one: str, others: list[str]) -> list[float]:
    """Per round: how many times as long the best of the others took."""
    found = [name for name in others if name in times]
    if one not in times or not found:
        return []
    best = [min(values) for values in zip(*(times[name] for name in found), strict=True)]
    return [b / a for a, b in zip(times[one], best, strict=True)]


RATIOS = [
    ("cold load: of the raw limit", "cold", [RAW, "raw_4"], ">= 0.9"),
    ("cold load: times as fast as runai-model-streamer", "cold", [RUNAI], ">= 1"),
    ("cold load: times as fast as DCP", "cold", ["dcp_1", "dcp_8"], ""),
    ("warm load: times as fast as DCP", "warm", ["dcp_1", "dcp_8"], ">= 8"),
    ("warm load: of the raw limit", "warm", [RAW, "raw_4"], ""),
    ("warm load: of raw reads and hashing", "warm", [HASHED], ">= 0.8"),
    ("save: of one raw writer's rate", "save", [RAW], ">= 0.95"),
    ("save: DCP's time over ours", "save", ["dcp_1", "dcp_8"], ">= 1.33"),
]


def report(times: dict[str, dict[str, list[float]]], size_bytes: int) -> list[dict[str, Any]]:
    """Print the figures, and return them."""
    cases: list[dict[str, Any]] = []
    for what, by_name in times.items():
        print(f"\n  {what}, median of rounds" + (" (s, GB/s; all rounds)" if by_name else ""))
        for name, values in by_name.items():
            median_s = statistics.median(values)
            rounds = " ".join(f"{value:.2f}" for value in values)
            print(f"    {name:<22}{median_s:8.3f}{size_bytes / median_s / 1e9:8.2f}   {rounds}")
            cases.append({"what": what, "contender": name, "seconds": values, "gb_per_s": size_bytes / median_s / 1e9})
    print()
    for title, what, others, aim in RATIOS:
        values = ratio(times[what], OURS, others)
        if values:
            spread = f"({min(values):.2f}-{max(values):.2f})"
            print(f"  {title:<52}{statistics.median(values):7.2f} {spread}{f'   aim {aim}' if aim else ''}")
            cases.append({"ratio": title, "median": statistics.median(values), "rounds": values, "aim": aim})
    return cases


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument(
        "--gb", type=float, default=1.6, help="size of the state dict (default 1.6; memory: four times)"
    )
    parser.add_argument("--targets", type=int, default=4, help="folders that ours stripes over (default 4)")
    parser.add_argument("--folder", default=None, help="on the disk to measure; default: the one for temporary files")
    parser.add_argument("--only", default="", help="contenders to measure, with commas; default all")
    parser.add_argument("--limit-s", type=float, default=900, help="start no new round after this many seconds")
    args = parser.parse_args()
    if args.rounds < 1 or args.targets < 1 or args.gb < 0.02:
        parser.error(f"--rounds {args.rounds}, --targets {args.targets}: at least 1; --gb {args.gb:g}: at least 0.02")
    unknown = set(filter(None, args.only.split(","))) - {contender.name for contender in CONTENDERS}
    if unknown:
        parser.error(f"--only {args.only}: {', '.join(unknown)} is none of {', '.join(c.name for c in CONTENDERS)}")
    return args


def measure(args: argparse.Namespace, bench: Bench, contenders: list[Contender]) -> dict[str, dict[str, list[float]]]:
    times: dict[str, dict[str, list[float]]] = {"save": {}, "cold": {}, "warm": {}}
    save_all(bench, contenders, 0, {})
    verify_all(bench, contenders)
    end_at_s = time.monotonic() + args.limit_s
    for number in range(args.rounds):
        if time.monotonic() > end_at_s:
            print(f"--limit-s {args.limit_s:g} is over after {number} rounds", flush=True)
            break
        save_all(bench, contenders, number, times["save"])
        os.sync()
        load_all(bench, contenders, number, times["cold"], cold=True)
        load_all(bench, contenders, number, times["warm"], cold=False)
        print(f"  round {number + 1} of {args.rounds}", flush=True)
    return times


def main() -> None:
    args = parse_arguments()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    only = set(filter(None, args.only.split(","))) or {contender.name for contender in CONTENDERS}
    contenders = list(present([contender for contender in CONTENDERS if contender.name in only]))
    state = state_of(int(args.gb * 1e9))
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    folder = tempfile.mkdtemp(prefix="robust-ckpt-bench-", dir=args.folder)
    try:
        into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        bench = Bench(folder, state, into, args.targets)
        print(f"  {size_bytes / 1e9:.2f} GB, {len(state)} tensors, {args.targets} targets, in {folder}", flush=True)
        times = measure(args, bench, contenders)
        cases = report(times, size_bytes)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
    print_result("ckpt", cases, size_bytes=size_bytes, targets=args.targets, rounds=args.rounds)


if __name__ == "__main__":
    main()
