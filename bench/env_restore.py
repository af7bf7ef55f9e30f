"""How long until packages are installed and imported: pip, uv, an archive of the environment, and each rung of a snapshot.

    python bench/env_restore.py --rounds 3
    python bench/env_restore.py --quick

The packages (transformers, datasets, accelerate, pandas, scikit-learn, tensorboard) go on top of torch, which is in the
environment already, as in an image. All ways begin with the same environment at the same path and end with a new process
that imports all of them, so that bytecode that nobody compiled and files that are read late are paid for. Ways, in turns:

    pip              without a cache (first round only, as `archive` and `target`)
    uv-cold          with an empty cache
    uv-hardlink      with all wheels unpacked in its cache, on the same disk
    uv-copy          the same, copied
    archive          a .tar.gz of all that was installed, as conda-pack and venv-pack make it, unpacked over the environment
    mount, userns    robust-run mounts the snapshot's image, which is on this node: by the kernel, by squashfuse
    extract-ready    its files are on the same disk already, unpacked: what a warm cache is to uv
    extract          unpacked from the image, to memory where there is plenty
    extract-disk     unpacked from the image, to the same disk
    target           the same, put on `sys.path`
    mount-cold       the image is fetched from the store first; so is that of extract-cold
    mount-process    as `mount`, by an interpreter that is started for it; without import

Ours is what a user of `robust-run --setup` waits for, who has started robust-run anyway: from the commands to the moment at
which a worker can start. That is making the key (files that the commands name, what is installed), asking the store, restoring.
Not in it: which folders are captured, as robust-run knows those of its own interpreter, and here it is another's; entering
the namespace, which is in `import`. The first call has the imports of our modules in it and is dropped; `mount-process` has
them. After the rounds, uv-hardlink, mount and extract-ready are repeated in turns without imports.

Aims are about the same disk. uv's hard links write no data, so the fair counterpart of an unpacked tree that is there is
extract-ready; unpacking from the image is held against uv-copy and uv-cold. `import floor` is what remains of the last aim if
installing took no time: beyond its limit, no way of installing can meet the aim on this machine with this index.

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

from env_ways import LIMIT_S, Bench, clean, install, make_archive, prepare, reset, run, say, uv
from sidebyside import print_result, spread, unwind_on_sigterm

from robust_run.clock import SystemClock
from robust_run.snapshot import platforms, restoring, starting
from robust_run.snapshot.building import BuildPlan
from robust_run.snapshot.capture.capturing import CaptureSetup
from robust_run.snapshot.errors import RestoreRefused
from robust_run.snapshot.ingredients import collect
from robust_run.snapshot.restored import RestoredEnvironment
from robust_run.snapshot.roots import ask, captured_roots
from robust_run.snapshot.rules import key
from robust_run.snapshot.rules.restore_ladder import Rung
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.store.opening import open_store

PACKAGES = ("transformers", "datasets", "accelerate", "pandas", "scikit-learn", "tensorboard")
MODULES = ("transformers", "datasets", "accelerate", "pandas", "sklearn", "torch.utils.tensorboard")
QUICK_PACKAGES, QUICK_MODULES = ("jinja2", "requests", "rich"), ("jinja2", "requests", "rich")
RUNGS: dict[str, Rung] = {
    "mount-cold": "mount", "extract-cold": "extract", "mount": "mount", "userns": "userns", "extract": "extract",
    "target": "target", "extract-disk": "extract", "extract-ready": "extract",
}  # fmt: skip
#: In this order: what is cold leaves the image for the others, and extract-disk the tree.
WAYS = ("uv-cold", "uv-hardlink", "uv-copy", *RUNGS, "mount-process", "pip", "archive")
ONCE = ("pip", "archive", "target")
REPEATED = ("uv-hardlink", "mount", "extract-ready")
REPEATS = 7
BEGAN_S = time.monotonic()
AIMS = (
    ("mount / uv warm", "mount", "uv-hardlink", "install", 0.05),
    ("extract, unpacked before / uv warm", "extract-ready", "uv-hardlink", "install", 1.0),
    ("extract from the image / uv warm, copied", "extract-disk", "uv-copy", "install", 1.0),
    ("extract from the image / uv warm, hardlinked", "extract-disk", "uv-hardlink", "install", 1.0),
    ("extract cold / uv cold", "extract-cold", "uv-cold", "install", 0.3),
    ("mount cold with import / uv cold with import", "mount-cold", "uv-cold", "total", 0.25),
)


def make_snapshot(bench: Bench) -> None:
    """Build it as a job's first start does."""
    bench.roots = captured_roots(*ask([bench.python], clean()))
    plan = plan_of(bench)
    began_s = time.monotonic()
    made = find(bench, plan)
    bench.manifest = made
    say(
        f"snapshot: {time.monotonic() - began_s:.1f} s, {made.items} entries, {made.content_bytes >> 20} MiB, image"
        f" {made.image_bytes >> 20} MiB, captured by {made.method}"
    )


def plan_of(bench: Bench) -> BuildPlan:
    """What `planning.prepare` does for an environment that is not that of this process."""
    setup = CaptureSetup(
        commands=(shlex.join(uv(bench, "cache-warm", "--link-mode", "copy", *bench.packages)),),
        cwd=bench.folder,
        roots=bench.roots,
        environment=clean(),
        python=(bench.python,),
        work_folders=(bench.folder,),
        watch=(),
    )
    facts = platforms.here()
    found = collect(
        setup.commands, cwd=setup.cwd, roots=setup.roots, facts=facts, environment=setup.environment, variables=(),
        cache=bench.at("node"),
    )  # fmt: skip
    return BuildPlan(key=key.make(found.ingredients), setup=setup, platform=facts.platform, pinned=found.pinned)


def find(bench: Bench, plan: BuildPlan) -> SnapshotManifest:
    store = open_store(bench.at("store"))
    return starting.find(
        plan, store, starting.RestoreRequest(), clock=SystemClock(), sleep=time.sleep, say=say
    ).manifest


def restore(bench: Bench, way: str) -> RestoredEnvironment:
    """All that a start does until a worker can start."""
    memory = bench.memory if way in ("extract", "extract-cold", "target") else None
    options = restoring.RestoreOptions(cache=bench.at("node"), rungs=(RUNGS[way],), memory=memory)
    plan = plan_of(bench)
    return restoring.restore(plan, find(bench, plan), open_store(bench.at("store")), options)


def restore_once(folder: str, modules: list[str]) -> None:
    """What `mount-process` starts: says when a worker could start, and waits for the end of its input."""
    bench = Bench(folder, tuple(modules), (), torch=False, memory="")
    bench.roots = captured_roots(*ask([bench.python], clean()))
    with restore(bench, "mount"):
        say("ready")
        sys.stdin.read()


def measure(bench: Bench, way: str, *, imports: bool = True) -> None:
    """Install or restore in one way, then import, and note how long both took."""
    importing = [bench.python, "-c", f"import {', '.join(bench.modules)}"]
    imported_s = None
    if way in RUNGS:
        forget(bench, way)
    began_s, before_s = time.monotonic(), cpu_s()
    if way in RUNGS:
        try:
            restored = restore(bench, way)
        except RestoreRefused as error:
            bench.reasons[way] = str(error)
            say(f"  {way:14} {error}")
            return
        with restored:
            installed_s, used_s = time.monotonic() - began_s, cpu_s() - before_s
            bench.reasons[way] = restored.choice.sentence()
            if imports:
                imported_s = run(restored.command(importing, bench.folder), restored.environment(clean()))
    else:
        installed_s = in_a_process(bench) if way == "mount-process" else install(bench, way)
        used_s = cpu_s() - before_s
        imported_s = run(importing) if imports and way != "mount-process" else None
    noted = bench.durations.setdefault(way, {"install": [], "cpu": [], "import": [], "total": []})
    noted["install"].append(round(installed_s, 4))
    noted["cpu"].append(round(used_s, 4))
    shown = ""
    if imported_s is not None:
        noted["import"].append(round(imported_s, 4))
        noted["total"].append(round(installed_s + imported_s, 4))
        shown = f"   import {imported_s:7.2f} s"
    say(f"  {way:14} install {installed_s:8.3f} s   cpu {used_s:7.3f} s{shown}   load {os.getloadavg()[0]:.1f}")


def forget(bench: Bench, way: str) -> None:
    """Have the node know no more than the way allows."""
    left = [bench.memory]
    if way.endswith("-cold"):
        left.append(bench.at("node"))
    elif way in ("extract", "target", "extract-disk"):
        left.append(bench.at("node", "unpacked"))
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    os.mkdir(bench.memory, 0o700)


def in_a_process(bench: Bench) -> float:
    """Return how long an interpreter takes from its start until a worker can start."""
    argv = [sys.executable, os.path.abspath(__file__), "--restore-once", bench.folder, "--modules", *bench.packages]
    began_s = time.monotonic()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        took_s = time.monotonic() - began_s
        process.communicate(timeout=LIMIT_S)
    if said != b"ready\n":
        raise SystemExit(f"{shlex.join(argv)} did not restore: see above")
    return took_s


def cpu_s() -> float:
    """Seconds of processor time of this process and its children that have ended."""
    return sum(os.times()[:4])


def report(bench: Bench, args: argparse.Namespace) -> None:
    """Print medians and ratios, and the JSON."""
    print(
        f"\n{'way':16}{'install s':>11}{'cpu s':>9}{'import s':>10}{'total s':>10}{'of uv warm':>12}{'of uv cold':>12}"
    )
    for way in bench.durations:
        cells = "".join(f"{middle(bench, way, name):>{width}.3f}" for name, width in WIDTHS)
        ratios = "".join(f"{ratio(bench, way, base, 'install'):>12.3f}" for base in ("uv-hardlink", "uv-cold"))
        print(f"{way:16}{cells}{ratios}")
    aims = []
    for title, way, base, what, aim in AIMS:
        found = ratio(bench, way, base, what)
        if found == found:
            aims.append({"aim": title, "ratio": round(found, 4), "at_most": aim, "met": found <= aim})
            print(f"{title}: {found:.3f} (aim: at most {aim}){'' if found <= aim else '  NOT MET'}")
    imports = [middle(bench, way, "import") for way in bench.durations if bench.durations[way]["import"]]
    floor = min(imports) / middle(bench, "uv-cold", "total") if "uv-cold" in bench.durations else float("nan")
    print(f"import floor: {floor:.3f}: the fastest import of all ways / uv cold with import")
    if "mount-cold" in bench.durations:
        found, aim = middle(bench, "mount-cold", "total") / min(imports), 1.2
        aims.append(
            {"aim": "mount cold with import / floor", "ratio": round(found, 4), "at_most": aim, "met": found <= aim}
        )
        print(f"mount cold with import / the fastest import: {found:.3f} (aim: at most {aim})")
    cases = [
        {
            "way": way,
            **{f"{name}_s": spread(values) for name, values in noted.items() if values},
            "how": bench.reasons.get(way, ""),
        }
        for way, noted in bench.durations.items()
    ]
    made = bench.manifest
    assert made is not None
    sizes = {"items": made.items, "content_bytes": made.content_bytes, "image_bytes": made.image_bytes}
    versions = {package.name: package.version for package in made.packages}
    print_result(
        "env_restore",
        cases,
        aims=aims,
        import_floor=round(floor, 4),
        snapshot=sizes,
        packages=versions,
        rounds=args.rounds,
        quick=args.quick,
    )


WIDTHS = (("install", 11), ("cpu", 9), ("import", 10), ("total", 10))


def middle(bench: Bench, way: str, name: str) -> float:
    values = bench.durations[way][name] if way in bench.durations else []
    return statistics.median(values) if values else float("nan")


def ratio(bench: Bench, way: str, base: str, name: str) -> float:
    return middle(bench, way, name) / middle(bench, base, name)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=10.0, help="start no round that would end later (default 10)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--quick", action="store_true", help="a few small packages and no torch, one round")
    parser.add_argument("--folder", default=None, help="where to write; the default is the temporary folder")
    parser.add_argument("--restore-once", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--modules", nargs="*", default=[], help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure, and print a table and a line of JSON."""
    args = parse_arguments()
    if args.restore_once:
        return restore_once(args.restore_once, args.modules)
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
    """All ways in turns, round by round, as long as there is time."""
    ways = [way for way in WAYS if way in args.ways]
    bench.durations = {}
    forget(bench, "mount")
    with restore(bench, "mount"):  # imports our modules
        pass
    end_s = BEGAN_S + 60 * args.minutes
    for number in range(args.rounds):
        began_s = time.monotonic()
        say(f"round {number}")
        for way in ways:
            if number == 0 or way not in ONCE:
                reset(bench)
                measure(bench, way)
        if number == 0:
            repeat(bench, ways)
            began_s += sum(bench.durations[way]["total"][0] for way in ONCE if way in bench.durations)
        if time.monotonic() + (time.monotonic() - began_s) > end_s:
            break


def repeat(bench: Bench, ways: list[str]) -> None:
    """What takes little time, often: in turns, so that a busy machine hurts all."""
    for _ in range(REPEATS):
        for way in REPEATED:
            if way in ways and (way != "extract-ready" or os.path.isdir(bench.at("node", "unpacked"))):
                reset(bench)
                measure(bench, way, imports=False)


if __name__ == "__main__":
    main()
