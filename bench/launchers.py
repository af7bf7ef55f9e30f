"""The launchers that the recovery bench compares, how people start each, and which of them can be had here."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from peer_venv import NVRX as PACKAGE
from peer_venv import PeerError, ft_launcher
from sidebyside import BASELINE, OURS

OWN_STORE, NVRX, COLD = "torchrun_own_store", "nvrx", "robust_run_cold"
ALL_SIDES = (BASELINE, OWN_STORE, NVRX, OURS, COLD)

LABELS = {
    BASELINE: "torchrun",
    OWN_STORE: "torchrun, own store",
    NVRX: "NVRx ft_launcher",
    OURS: "robust-run",
    COLD: "robust-run --no-warm",
}
"""For people."""

HELP_LIMIT_S = 30.0


class SideError(Exception):
    """A side that cannot be measured here. The message says why, in a line."""


@dataclass(frozen=True)
class Launcher:
    """One side: a launcher with the settings that make it this side."""

    name: str
    head: tuple[str, ...]
    """The command up to the options that all sides have."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Variables of its environment."""
    version: str = ""
    """Of what is not part of torch or of this repository."""

    def command(self, ranks: int, *more: str) -> list[str]:
        """Return how this many workers are started on one machine."""
        return [*self.head, "--nproc-per-node", str(ranks), *more]

    def shown(self, ranks: int, *more: str) -> str:
        """Return the same as one would type it."""
        variables = [f"{name}={value}" for name, value in self.settings.items()]
        return " ".join([*variables, subprocess.list2cmdline(self.command(ranks, *more))])


def add_side_options(parser: argparse.ArgumentParser) -> None:
    """Options that choose the sides."""
    parser.add_argument("--sides", type=side_names, default=list(ALL_SIDES), help=f"default: {','.join(ALL_SIDES)}")
    parser.add_argument("--peer-venv", help="virtual environment with NVRx, made if missing; default: one in ~/.cache")


def side_names(text: str) -> list[str]:
    """`torchrun,nvrx` as names. Raises argparse.ArgumentTypeError."""
    names = list(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in ALL_SIDES]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no side: choose from {','.join(ALL_SIDES)}")
    return names


def available(args: argparse.Namespace) -> tuple[list[Launcher], dict[str, str]]:
    """Return the sides that were asked for and can be had, and why the others cannot. Exits if none is left."""
    found: list[Launcher] = []
    skipped: dict[str, str] = {}
    for name in args.sides:
        try:
            found.append(_HOW[name](args))
        except (SideError, PeerError) as error:
            skipped[name] = str(error)
            print(f"{name} is left out: {error}", flush=True)
    if not found:
        raise SystemExit("no side is left to measure: see above, and choose others with --sides")
    return found, skipped


def _torchrun(args: argparse.Namespace) -> Launcher:
    return Launcher(BASELINE, (_executable(args.torchrun, "--torchrun"), "--standalone"))


def _torchrun_own_store(args: argparse.Namespace) -> Launcher:
    """Every attempt gets a store of its own instead of the launcher's; off by default in torch 2.13."""
    return Launcher(OWN_STORE, _torchrun(args).head, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})


def _nvrx(args: argparse.Namespace) -> Launcher:
    path, version = ft_launcher(args.peer_venv)
    return Launcher(NVRX, (path, "--standalone"), version=f"{PACKAGE} {version}")


def _robust_run(args: argparse.Namespace) -> Launcher:
    return Launcher(OURS, (_executable(args.robust_run, "--robust-run"),))


def _robust_run_cold(args: argparse.Namespace) -> Launcher:
    path = _executable(args.robust_run, "--robust-run")
    try:
        result = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=HELP_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SideError(f"{path} --help: {error}") from error
    if "--no-warm" not in result.stdout:
        raise SideError(f"{path} has no --no-warm (see its --help): this version starts every attempt cold anyway")
    return Launcher(COLD, (path, "--no-warm"))


def _executable(path: str, option: str) -> str:
    if not os.access(path, os.X_OK):
        raise SideError(f"{path} is not an executable: install it, or give {option} PATH")
    return os.path.abspath(path)


_HOW: dict[str, Callable[[argparse.Namespace], Launcher]] = {
    BASELINE: _torchrun,
    OWN_STORE: _torchrun_own_store,
    NVRX: _nvrx,
    OURS: _robust_run,
    COLD: _robust_run_cold,
}
