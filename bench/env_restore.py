"""How long until packages are installed and imported: pip, uv, an archive of the environment, and each rung of a snapshot.

    python bench/env_restore.py --rounds 3
    python bench/env_restore.py --quick

The packages (transformers, datasets, accelerate, pandas, scikit-learn, tensorboard) go on top of torch, which is in the
environment already, as in an image. All ways begin with the same environment at the same path and end with a new process
that imports all of them, so that bytecode that nobody compiled and files that are read late are paid for. Ways, in turns:

    pip           without a cache
    uv-cold       with an empty cache
    uv-hardlink   with all wheels unpacked in its cache, on the same disk
    uv-copy       the same, copied
    archive       a .tar.gz of all that was installed, as conda-pack and venv-pack make it, unpacked over the environment
    mount ...     robust-run restores the snapshot, whose image is on this node, by each rung of its ladder
    extract-disk  unpacked on the same disk; extract takes memory where there is plenty
    mount-cold    the image is fetched from the store first; so is that of userns-cold and extract-cold

Indexes and wheels are those that pip is configured for. Where they are folders, no network is paid for: then pip and uv look
better than they are on a cluster. uv itself is installed from the index. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from sidebyside import print_result, spread, unwind_on_sigterm

from robust_run.clock import SystemClock
from robust_run.snapshot import key, platforms, restoring, starting
from robust_run.snapshot.building import Plan
from robust_run.snapshot.capture.capturing import Setup
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.ingredients import collect
from robust_run.snapshot.restore.ladder import Rung
from robust_run.snapshot.roots import ask, captured_roots
from robust_run.snapshot.types import Manifest
from robust_run.store.opening import open_store

PACKAGES = ("transformers", "datasets", "accelerate", "pandas", "scikit-learn", "tensorboard")
MODULES = ("transformers", "datasets", "accelerate", "pandas", "sklearn", "torch.utils.tensorboard")
QUICK_PACKAGES, QUICK_MODULES = ("jinja2", "requests", "rich"), ("jinja2", "requests", "rich")
PEERS = ("pip", "uv-cold", "uv-hardlink", "uv-copy", "archive")
RUNGS: tuple[Rung, ...] = ("mount", "userns", "extract", "target")
OURS = (*RUNGS, "extract-disk", "mount-cold", "userns-cold", "extract-cold")
LIMIT_S = 1800.0
AIMS = (
    ("mount / uv warm", "mount", "uv-hardlink", "install", 0.05),
    ("extract / uv warm", "extract", "uv-hardlink", "install", 1.0),
    ("extract on disk / uv warm, hardlinked", "extract-disk", "uv-hardlink", "install", 1.0),
    ("extract on disk / uv warm, copied", "extract-disk", "uv-copy", "install", 1.0),
    ("extract cold / uv cold", "extract-cold", "uv-cold", "install", 0.3),
    ("mount cold with import / uv cold with import", "mount-cold", "uv-cold", "total", 0.25),
)


@dataclass
class Bench:
    """Where everything is."""

    folder: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    torch: bool
    memory: str
    durations: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """What is known of a way: the rung, or why there is none."""
    manifest: Manifest | None = None
    plan: Plan | None = None

    @property
    def environment(self) -> str:
        """The path that all ways install into."""
        return os.path.join(self.folder, "environment")

    @property
    def python(self) -> str:
        """Its interpreter."""
        return os.path.join(self.environment, "bin", "python")

    def at(self, *names: str) -> str:
        """Return a path in the folder of the bench."""
        return os.path.join(self.folder, *names)


def say(text: str) -> None:
    print(text, flush=True)


def run(argv: list[str], env: dict[str, str] | None = None) -> float:
    """Run a program to its end and return the seconds it took. Raises SystemExit with what it said."""
    began_s = time.monotonic()
    done = subprocess.run(
        argv, env=env or clean(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{shlex.join(argv)[:300]} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return time.monotonic() - began_s


def clean() -> dict[str, str]:
    """The environment of an installer or program: nothing of ours in it."""
    left_out = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "UV_CACHE_DIR", "UV_LINK_MODE")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def sources() -> list[str]:
    """Return uv's options for where pip is configured to look."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        name, _, value = line.partition("=")
        found.setdefault(name.rpartition(".")[2], []).extend(value.strip("'\"").split())
    options = []
    for name, option in (("extra-index-url", "--index"), ("find-links", "--find-links")):
        options += [part for value in dict.fromkeys(found.get(name, [])) for part in (option, value)]
    for value in found.get("index-url", [])[:1]:
        options += ["--default-index", value]
    return options


def uv(bench: Bench, cache: str, *more: str) -> list[str]:
    return [
        bench.at("tools", "bin", "uv"), "pip", "install", "--quiet", "--python", bench.python, "--cache-dir",
        bench.at(cache), *sources(), "--constraint", bench.at("constraints.txt"), *more,
    ]  # fmt: skip


def prepare(bench: Bench) -> None:
    """Make the environment that all ways begin with, and keep a copy of it."""
    tools = bench.at("tools")
    say(f"uv from the index: {run([sys.executable, '-m', 'pip', 'install', '-q', '--target', tools, 'uv']):.1f} s")
    run([sys.executable, "-m", "venv", "--without-pip", bench.environment])
    with open(bench.at("constraints.txt"), "w", encoding="ascii") as file:
        if bench.torch:
            from importlib import metadata

            file.write(f"torch=={metadata.version('torch').partition('+')[0]}\n")
    if bench.torch:
        say(f"torch into the environment: {run(uv(bench, 'cache-warm', '--compile-bytecode', 'torch')):.1f} s")
    run(["cp", "-al", bench.environment, bench.at("pristine")])
    say(f"filling uv's cache: {run(uv(bench, 'cache-warm', '--link-mode', 'hardlink', *bench.packages)):.1f} s")
    reset(bench)


def reset(bench: Bench) -> None:
    """Begin anew. Linked, not copied: installers replace files, and do not write into them."""
    shutil.rmtree(bench.environment)
    run(["cp", "-al", bench.at("pristine"), bench.environment])


def make_archive(bench: Bench) -> None:
    """Archive what was installed and not there before, with its bytecode, as conda-pack and venv-pack would."""
    run(uv(bench, "cache-warm", "--link-mode", "copy", "--compile-bytecode", *bench.packages))
    before, after = files(bench.at("pristine")), files(bench.environment)
    with open(bench.at("new"), "wb") as file:
        file.write(b"\0".join(os.fsencode(name) for name in sorted(after - before)))
    argv = ["tar", "-C", bench.environment, "-czf", bench.at("archive.tar.gz"), "--null", "-T", bench.at("new")]
    say(f"archive of {len(after - before)} files: {run(argv):.1f} s")
    reset(bench)


def files(folder: str) -> set[str]:
    return {
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _folders, names in os.walk(folder)
        for name in names
    }


def make_snapshot(bench: Bench) -> None:
    """Build it as a job's first start does."""
    prefix, paths, user = ask([bench.python], clean())
    setup = Setup(
        commands=(shlex.join(uv(bench, "cache-warm", "--link-mode", "copy", *bench.packages)),),
        cwd=bench.folder,
        roots=captured_roots(prefix, paths, user),
        environment=clean(),
        python=(bench.python,),
        work_folders=(bench.folder,),
        watch=(),
    )
    facts = platforms.here()
    found = collect(
        setup.commands, cwd=setup.cwd, roots=setup.roots, facts=facts, environment=setup.environment, variables=()
    )
    bench.plan = Plan(key=key.make(found.ingredients), setup=setup, platform=facts.platform, pinned=found.pinned)
    began_s = time.monotonic()
    asked = starting.Asked()
    made = starting.find(
        bench.plan, open_store(bench.at("store")), asked, clock=SystemClock(), sleep=time.sleep, say=say
    ).manifest
    bench.manifest = made
    say(
        f"snapshot: {time.monotonic() - began_s:.1f} s, {made.items} entries, {made.content_bytes >> 20} MiB, image"
        f" {made.image_bytes >> 20} MiB, captured by {made.method}"
    )


def install(bench: Bench, way: str) -> float:
    """Install in the way of a peer; return the seconds."""
    if way == "pip":
        argv = [sys.executable, "-m", "pip", "--python", bench.python, "install", "--quiet", "--no-cache-dir"]
        return run([*argv, "--constraint", bench.at("constraints.txt"), *bench.packages])
    if way == "uv-cold":
        shutil.rmtree(bench.at("cache-cold"), ignore_errors=True)
        return run(uv(bench, "cache-cold", *bench.packages))
    if way == "archive":
        return run(["tar", "-C", bench.environment, "-xzf", bench.at("archive.tar.gz")])
    return run(uv(bench, "cache-warm", "--link-mode", way.removeprefix("uv-"), *bench.packages))


def measure(bench: Bench, way: str) -> None:
    """Install or restore in one way, then import, and note how long both took."""
    importing = [bench.python, "-c", f"import {', '.join(bench.modules)}"]
    if way in PEERS:
        installed_s = install(bench, way)
        imported_s = run(importing)
    else:
        assert bench.plan is not None and bench.manifest is not None
        rung: Any = way.partition("-")[0]
        cache = bench.at("node")
        memory = None if way == "extract-disk" else bench.memory
        places = [os.path.join(cache, "unpacked"), os.path.join(cache, "images") if way.endswith("-cold") else ""]
        for left in filter(None, [*places, memory]):
            shutil.rmtree(left, ignore_errors=True)
        if memory is not None:
            os.mkdir(memory, 0o700)
        options = restoring.Options(cache=cache, rungs=(rung,), memory=memory)
        began_s = time.monotonic()
        try:
            restored = restoring.restore(bench.plan, bench.manifest, open_store(bench.at("store")), options)
        except RestoreRefused as error:
            bench.reasons[way] = str(error)
            say(f"  {way:14} {error}")
            return
        with restored:
            installed_s = time.monotonic() - began_s
            bench.reasons[way] = restored.choice.sentence()
            imported_s = run(restored.command(importing, bench.folder), restored.environment(clean()))
    noted = bench.durations.setdefault(way, {"install": [], "import": [], "total": []})
    for name, seconds in (("install", installed_s), ("import", imported_s), ("total", installed_s + imported_s)):
        noted[name].append(round(seconds, 4))
    say(f"  {way:14} install {installed_s:8.3f} s   import {imported_s:7.2f} s   load {os.getloadavg()[0]:.1f}")


def report(bench: Bench, args: argparse.Namespace) -> None:
    """Print medians and ratios, and the JSON."""
    print(f"\n{'way':16}{'install s':>11}{'import s':>10}{'total s':>10}{'of uv warm':>12}{'of uv cold':>12}")
    for way in bench.durations:
        cells = "".join(f"{middle(bench, way, name):>{width}.3f}" for name, width in WIDTHS)
        ratios = "".join(f"{ratio(bench, way, base, 'total'):>12.3f}" for base in ("uv-hardlink", "uv-cold"))
        print(f"{way:16}{cells}{ratios}")
    aims = []
    for title, way, base, what, aim in AIMS:
        if way in bench.durations and base in bench.durations:
            found = ratio(bench, way, base, what)
            aims.append({"aim": title, "ratio": round(found, 4), "at_most": aim, "met": found <= aim})
            print(f"{title}: {found:.3f} (aim: at most {aim}){'' if found <= aim else '  NOT MET'}")
    cases = [
        {
            "way": way,
            **{f"{name}_s": spread(values) for name, values in noted.items()},
            "how": bench.reasons.get(way, ""),
        }
        for way, noted in bench.durations.items()
    ]
    made = bench.manifest
    assert made is not None
    sizes = {"items": made.items, "content_bytes": made.content_bytes, "image_bytes": made.image_bytes}
    versions = {package.name: package.version for package in made.packages}
    print_result(
        "env_restore", cases, aims=aims, snapshot=sizes, packages=versions, rounds=args.rounds, quick=args.quick
    )


WIDTHS = (("install", 11), ("import", 10), ("total", 10))


def middle(bench: Bench, way: str, name: str) -> float:
    return statistics.median(bench.durations[way][name])


def ratio(bench: Bench, way: str, base: str, name: str) -> float:
    return middle(bench, way, name) / middle(bench, base, name) if base in bench.durations else float("nan")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=[*PEERS, *OURS], default=[*PEERS, *OURS])
    parser.add_argument("--quick", action="store_true", help="a few small packages and no torch, one round")
    parser.add_argument("--folder", default=None, help="where to write; the default is the temporary folder")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    args = parse_arguments()
    if args.quick:
        args.rounds = 1
    unwind_on_sigterm()
    folder = os.path.realpath(tempfile.mkdtemp(prefix="env-bench-", dir=args.folder))
    memory = os.path.join("/dev/shm", os.path.basename(folder))
    packages, modules = (QUICK_PACKAGES, QUICK_MODULES) if args.quick else (PACKAGES, MODULES)
    bench = Bench(folder, packages, modules, torch=not args.quick, memory=memory)
    try:
        prepare(bench)
        if "archive" in args.ways:
            make_archive(bench)
        make_snapshot(bench)
        measure_all(bench, args)
        report(bench, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def measure_all(bench: Bench, args: argparse.Namespace) -> None:
    """All ways in turns, round by round."""
    # The cold ways of ours first: they leave the image for the others.
    ways = sorted(args.ways, key=lambda way: (way in OURS, not way.endswith("-cold")))
    for number in range(args.rounds):
        say(f"round {number}")
        for way in ways:
            reset(bench)
            measure(bench, way)


if __name__ == "__main__":
    main()
