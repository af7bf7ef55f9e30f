"""Frameworks for the tests of docs/recipes: an environment of its own, made once a user, or the test is skipped with the reason.

It sees the packages of the interpreter that runs the tests, so that torch is neither fetched again nor another one, and adds
what `tests/frameworks/constraints.txt` names. ROBUST_TEST_PARTS names the folder that keeps it (default:
~/.cache/robust-run/test-parts, 200 MB); `off` makes none.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import pytest

CONSTRAINTS = Path(__file__).parent / "frameworks" / "constraints.txt"
#: Frameworks look up nothing and find no GPU.
ALONE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "DS_ACCELERATOR": "cpu",
    "TOKENIZERS_PARALLELISM": "false",
}
FRAMEWORKS = ("transformers", "accelerate", "lightning", "deepspeed")
#: Shows all that packages need here, at any depth, with the extras that are asked for. What torch needs is torch's.
NEEDED = """
from importlib.metadata import distribution
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
def follow(name, extras, found):
    package = distribution(name)
    if (canonicalize_name(name), extras) in found:
        return
    found[canonicalize_name(name), extras] = package.version
    for each in map(Requirement, (package.requires or ()) if name != "torch" else ()):
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            follow(each.name, tuple(sorted(each.extras)), found)
def show(names):
    found = {}
    for name in names:
        follow(name, (), found)
    print(*sorted({f"{name}=={version}" for (name, _), version in found.items()}), sep="\\n")
"""
STAMP = "made-by-tests"
"""Written last: a folder without it was never finished."""
MADE = "2"
"""How it is made: another number makes it anew."""
INSTALL_LIMIT_S = 600.0
NOT_AGAIN_S = 600
"""After one attempt that failed nobody tries again for so long: each would wait for the one before."""


def pins(constraints: str) -> dict[str, str]:
    """Return the version of each package that the text pins."""
    lines = [line.partition("#")[0].strip() for line in constraints.splitlines()]
    return dict(line.split("==") for line in lines if line)


def wanted(constraints: str) -> list[str]:
    """Return what is to be installed by name; all else comes because these need it, in the version that is pinned."""
    pinned = pins(constraints)
    return [f"{name}=={pinned[name]}" for name in FRAMEWORKS]


def version_of(package: str) -> str:
    """Return the version that is pinned."""
    return pins(CONSTRAINTS.read_text())[package]


def installed() -> dict[str, str]:
    """Return the version of each package that the frameworks run with: themselves, and what they need; skip as `python` does."""
    said = _run([python(), "-c", f"{NEEDED}\nshow({FRAMEWORKS})"])
    return dict(line.split("==") for line in said.split())


def python() -> str:
    """Return the interpreter that has the frameworks; skip the test where it cannot be had."""
    chosen = os.environ.get("ROBUST_TEST_PARTS", "")
    if chosen == "off":
        pytest.skip("ROBUST_TEST_PARTS=off: no frameworks are fetched")
    parts = Path(chosen or "~/.cache/robust-run/test-parts").expanduser()
    folder = parts / f"frameworks-{_key()}"
    try:
        parts.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(parts / f"{folder.name}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
            if not (folder / STAMP).exists():
                failed = parts / f"{folder.name}.failed"
                if failed.exists() and 0 <= time.time() - failed.stat().st_mtime < NOT_AGAIN_S:
                    pytest.skip(f"frameworks could not be installed a while ago (remove {failed} to try again)")
                failed.touch()
                _make(folder)
                failed.unlink()
    except OSError as error:
        pytest.skip(f"{parts} cannot keep frameworks: {error}")
    return str(folder / "bin" / "python")


def environment() -> dict[str, str]:
    """Return the variables to run frameworks with; skip the test as `python` does."""
    python()
    return dict(ALONE)


def _key() -> str:
    """Return what an environment belongs to: an interpreter, the packages that it sees, and what is pinned."""
    parts = (MADE, sys.executable, sys.version, *_seen(), CONSTRAINTS.read_text())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:10]


def _seen() -> list[str]:
    """Return the folders of packages that the tests run with."""
    return list(dict.fromkeys(sysconfig.get_path(each) for each in ("purelib", "platlib")))


def _make(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])  # pip and setuptools are seen, too
    own = folder / "bin" / "python"
    packages = _run([str(own), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # Of a folder in a .pth its own .pth files are not read; those of an editable install are needed.
    lines = [f"import site; site.addsitedir({each!r})\n" for each in _seen()]
    (Path(packages) / "seen.pth").write_text("".join(lines))
    pip = [str(own), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    # pip would compile all of them, which takes three times as long as the rest; what is imported is compiled then.
    _run([*pip, "--no-compile", "--constraint", str(CONSTRAINTS), *wanted(CONSTRAINTS.read_text())])
    check = "import torch; print(torch.__version__, torch.__file__)"
    if (ours := _run([sys.executable, "-c", check])) != (theirs := _run([str(own), "-c", check])):
        pytest.skip(f"frameworks brought another torch: {theirs.strip()} instead of {ours.strip()}")
    _compile_nothing(Path(packages) / "deepspeed")
    (folder / STAMP).touch()


def _compile_nothing(deepspeed: Path) -> None:
    """Have DeepSpeed's ranks without a GPU use gloo, as on other platforms: its own operator takes 90 s of CPU to be compiled."""
    builder = deepspeed / "ops" / "op_builder" / "cpu" / "comm.py"
    found = builder.read_text()
    without = found.replace("if sys.platform != 'linux':", "if True:")
    assert without != found, f"{builder} asks for another platform in other words"
    builder.write_text(without)


def _run(command: list[str], **more: str) -> str:
    """Run a command to its end and return its output; skip the test where it fails."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    # No part of DeepSpeed is compiled, and its setup asks for no CUDA.
    env |= {"DS_BUILD_OPS": "0", **ALONE, **more}
    try:
        result = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"installing frameworks took more than {INSTALL_LIMIT_S:g} s")
    if result.returncode != 0:
        lines = (result.stderr.strip() or "no output").splitlines()
        said = next((line.strip() for line in lines if "rror:" in line), lines[-1])
        pytest.skip(f"frameworks cannot be installed: {said}")
    return result.stdout
