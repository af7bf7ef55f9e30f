"""A virtual environment for a launcher that is no dependency of ours, made on demand and kept for the next time.

It borrows torch and numpy from the interpreter that runs the bench, by path: nothing large is downloaded, all sides import
the very same files, and what the peer needs besides is never installed where we are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from importlib import metadata

NVRX = "nvidia-resiliency-ext"
NVRX_VERSION = "0.4.1"
NEEDS = ("defusedxml", "nvidia-ml-py", "packaging", "psutil", "pynvml", "pyyaml")
"""What it declares, without torch."""

LAUNCHER = os.path.join("bin", "ft_launcher")
STAMP = "made-by-the-bench"
"""Written last: a folder without it was never finished."""

INSTALL_LIMIT_S = 300.0
CHECK_LIMIT_S = 60.0
CHECK = (
    "import numpy, torch, nvidia_resiliency_ext.fault_tolerance.launcher; from importlib import metadata; "
    f"print(torch.__version__, metadata.version({NVRX!r}))"
)


class PeerError(Exception):
    """The peer cannot be had here. The message says why, in a line."""


def ft_launcher(chosen: str | None) -> tuple[str, str]:
    """Return the path of NVRx's ft_launcher and its version, installing it first if need be.

    `chosen` is a folder to find or make the environment in; None is one of our own in the user's cache. Raises PeerError.
    """
    folder = os.path.abspath(chosen) if chosen else cache_folder()
    launcher = os.path.join(folder, LAUNCHER)
    finished = os.path.exists(os.path.join(folder, STAMP))
    if chosen and not finished and os.path.isdir(folder) and os.listdir(folder):
        if not os.access(launcher, os.X_OK):
            raise PeerError(f"{folder} is not empty and has no {LAUNCHER}; give --peer-venv a new folder")
    elif not finished:
        _make(folder)
    return launcher, _checked_version(folder)


def cache_folder() -> str:
    """Where the environment is kept: a folder of its own for each interpreter and torch that it borrows from."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    key = hashlib.sha256("\n".join([sys.executable, sys.version, *borrowed_folders()]).encode()).hexdigest()[:8]
    return os.path.join(cache, "robust-run-bench", f"{NVRX}-{NVRX_VERSION}-{key}")


def borrowed_folders() -> list[str]:
    """Return where torch and numpy are imported from. Raises PeerError without torch."""
    folders: list[str] = []
    for name in ("torch", "numpy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(os.path.dirname(os.path.dirname(os.path.realpath(spec.origin))))
        elif name == "torch":
            raise PeerError(f"{sys.executable} has no torch that {NVRX} could use")
    return list(dict.fromkeys(folders))


def _make(folder: str) -> None:
    print(f"installing {NVRX} {NVRX_VERSION} into {folder}, once", flush=True)
    wanted = [f"{NVRX}=={NVRX_VERSION}", *NEEDS]
    if importlib.util.find_spec("numpy") is None:
        wanted.append("numpy")
    python = os.path.join(folder, "bin", "python")
    try:
        _run([sys.executable, "-m", "venv", "--clear", folder])
        # Torch is not visible in there yet, and --no-deps: pip can neither replace it nor fetch one.
        _run([
            python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary", ":all:", *wanted,
        ])  # fmt: skip
        packages = os.path.join(folder, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
        with open(os.path.join(packages, "borrowed.pth"), "w", encoding="utf-8") as file:
            file.writelines(f"{path}\n" for path in borrowed_folders())
        with open(os.path.join(folder, STAMP), "w", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in wanted)
    except PeerError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _checked_version(folder: str) -> str:
    """Return the peer's version. Raises PeerError unless it can be imported and sees our torch."""
    seen, version = _run([os.path.join(folder, "bin", "python"), "-W", "ignore", "-c", CHECK], CHECK_LIMIT_S).split()[
        -2:
    ]
    ours = metadata.version("torch")
    if seen.partition("+")[0] != ours.partition("+")[0]:
        raise PeerError(f"{folder} has torch {seen}, the bench runs with {ours}; give --peer-venv a new folder")
    return version


def _run(command: list[str], limit_s: float = INSTALL_LIMIT_S) -> str:
    """Run a command to its end and return its output. Raises PeerError with the last line of its complaint."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        result = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"{subprocess.list2cmdline(command[:4])} ... took more than {limit_s:.0f} s") from error
    except OSError as error:
        raise PeerError(f"{command[0]}: {error.strerror}") from error
    if result.returncode != 0:
        complaint = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()[-1]
        raise PeerError(f"{subprocess.list2cmdline(command[:4])} ... failed: {complaint}")
    return result.stdout
