"""What `env_restore` compares with: an environment to install into, and how installers and an archive do that."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field

from robust_run.snapshot.rules.types import Root, SnapshotManifest

LIMIT_S = 1800.0


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
    manifest: SnapshotManifest | None = None
    roots: tuple[Root, ...] = ()

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


@functools.cache
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
    os.sync()  # nobody pays for what another wrote
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
