"""A virtual environment for a peer that is no dependency of ours, made on demand and kept for the next time.

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
from typing import NamedTuple

NVRX = "nvidia-resiliency-ext"


class Peer(NamedTuple):
    """A package that is measured beside ours."""

    package: str
    version: str
    needs: tuple[str, ...]
    """What it declares, without torch."""
    imports: str
    """What must be importable."""


NVRX_PEER = Peer(
    NVRX, "0.4.1", ("defusedxml", "nvidia-ml-py", "packaging", "psutil", "pynvml", "pyyaml"),
    "nvidia_resiliency_ext.fault_tolerance.launcher",
)  # fmt: skip
DLROVER = Peer(
    "dlrover", "0.6.1",
    ("psutil", "pynvml", "nvidia-ml-py", "deprecated", "wrapt", "requests", "urllib3", "idna", "certifi", "charset-normalizer",
     "packaging", "grpcio", "protobuf"),
    "dlrover.trainer.torch.flash_checkpoint.ddp",
)  # fmt: skip

PYTHON, LAUNCHER = os.path.join("bin", "python"), os.path.join("bin", "ft_launcher")
STAMP = "made-by-the-bench"
"""Written last: a folder without it was never finished."""

INSTALL_LIMIT_S = 300.0
CHECK_LIMIT_S = 60.0


class PeerError(Exception):
    """The peer cannot be had here. The message says why, in a line."""


def ft_launcher(chosen: str | None) -> tuple[str, str]:
    """Return the path of NVRx's ft_launcher and its version. Raises PeerError; see `environment`."""
    folder, version = environment(NVRX_PEER, chosen, LAUNCHER)
    return os.path.join(folder, LAUNCHER), version


def environment(peer: Peer, chosen: str | None = None, holds: str = PYTHON) -> tuple[str, str]:
    """Return the folder of a peer's environment and the peer's version, installing it first if need be.

    `chosen` is a folder to find or make the environment in; None is one of our own in the user's cache. `holds`: a file that
    shows that a folder of the user's is one. Raises PeerError.
    """
    folder = os.path.abspath(chosen) if chosen else cache_folder(peer)
    finished = os.path.exists(os.path.join(folder, STAMP))
    if chosen and not finished and os.path.isdir(folder) and os.listdir(folder):
        if not os.access(os.path.join(folder, holds), os.X_OK):
            raise PeerError(f"{folder} is not empty and has no {holds}; give --peer-venv a new folder")
    elif not finished:
        _make(peer, folder)
    return folder, _checked_version(peer, folder)


def cache_folder(peer: Peer) -> str:
    """Where the environment is kept: a folder of its own for each interpreter and torch that it borrows from."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    borrowed = borrowed_folders(peer)
    key = hashlib.sha256("\n".join([sys.executable, sys.version, *borrowed]).encode()).hexdigest()[:8]
    return os.path.join(cache, "robust-run-bench", f"{peer.package}-{peer.version}-{key}")


def borrowed_folders(peer: Peer) -> list[str]:
    """Return where torch and numpy are imported from. Raises PeerError without torch."""
    folders: list[str] = []
    for name in ("torch", "numpy"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            folders.append(os.path.dirname(os.path.dirname(os.path.realpath(spec.origin))))
        elif name == "torch":
            raise PeerError(f"{sys.executable} has no torch that {peer.package} could use")
    return list(dict.fromkeys(folders))


def _make(peer: Peer, folder: str) -> None:
    print(f"installing {peer.package} {peer.version} into {folder}, once", flush=True)
    wanted = [f"{peer.package}=={peer.version}", *peer.needs]
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
            file.writelines(f"{path}\n" for path in borrowed_folders(peer))
        with open(os.path.join(folder, STAMP), "w", encoding="utf-8") as file:
            file.writelines(f"{name}\n" for name in wanted)
    except PeerError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _checked_version(peer: Peer, folder: str) -> str:
    """Return the peer's version. Raises PeerError unless it can be imported and sees our torch."""
    check = (
        f"import numpy, torch, {peer.imports}; from importlib import metadata; "
        f"print(torch.__version__, metadata.version({peer.package!r}))"
    )
    python = os.path.join(folder, PYTHON)
    seen, version = _run([python, "-W", "ignore", "-c", check], CHECK_LIMIT_S).split()[-2:]
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
