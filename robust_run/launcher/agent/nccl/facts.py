"""Preconditions of NCCL tracing on a node: its devices, its NCCL, a plugin of the user's own, room, our plugin.

All of it is read from names of files, before the first worker starts, in one or two milliseconds; torch is not asked. A machine
without NVIDIA's driver does not even import this (see `node`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from robust_run.launcher.agent.workers.devices import has_nvidia, python_of
from robust_run.launcher.model.world import Files

if TYPE_CHECKING:
    from robust_run.tracer.plugin.build import Plugin

PLUGIN_VARIABLE = "NCCL_PROFILER_PLUGIN"
#: What NCCL looks for where the variable is not set.
DEFAULT_PLUGIN = "libnccl-profiler.so"

_STANDARD_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/lib",
)
_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info")
_LIBRARY = re.compile(r"libnccl\.so\.(\d+\.\d+(?:\.\d+)*)")
_LONGEST = 200


class NcclFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What decides, as far as it was looked for."""

    devices: bool
    """NVIDIA's driver is there, and its devices are not hidden from the workers."""
    version: tuple[int, ...] | None = None
    """Of the NCCL that the workers will find; None: unknown, and taken for new enough."""
    own: str = ""
    """Where the user chose a profiler plugin; empty: nowhere."""
    free_bytes: int | None = None
    """In the memory file system; None: there is none that we may write to."""
    plugin: str = ""
    """Path of our plugin; empty: it must be compiled first."""
    trouble: str = ""
    """What came of compiling it."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What may be asked of this node."""

    files: Files
    executable: str
    """The Python that runs us."""
    library_folders: tuple[str, ...]
    """Where it looks for packages; absolute."""
    free_bytes: Callable[[str], int | None]
    """Room in the file system of a folder."""
    at_hand: Callable[[], str]
    """Path of the plugin if there is one; compiles nothing."""
    ensure: Callable[[], Plugin]
    """The plugin, compiled now if it must be."""


def look(option: str, env: Mapping[str, str], memory: str | None, machine: Machine) -> NcclFacts:
    """Return the facts; those that decide nothing any more are not looked for. `memory`: folder for the files; None: on disk."""
    devices = has_nvidia(machine.files, env)
    if option == "off" or env.get("ROBUST_TRACE") == "0" or (option == "auto" and not devices):
        return NcclFacts(devices=devices)
    return NcclFacts(
        devices=devices,
        version=nccl_version(machine, env),
        own=own_plugin(machine.files, env),
        free_bytes=machine.free_bytes(memory) if memory else None,
        plugin=machine.at_hand(),
    )


def own_plugin(files: Files, env: Mapping[str, str]) -> str:
    """Return where the user chose a profiler plugin: a variable, a configuration file of NCCL, a library of the default name."""
    if env.get(PLUGIN_VARIABLE):
        return f"{PLUGIN_VARIABLE}={env[PLUGIN_VARIABLE][:_LONGEST]}"
    home = env.get("HOME", "")
    mine = env.get("NCCL_CONF_FILE") or (f"{home}/.nccl.conf" if home else "")
    for path in (mine, "/etc/nccl.conf"):
        for line in files.text(path).splitlines() if files.kind(path) == "file" else ():
            name, _, value = line.partition("=")
            if name.strip() == PLUGIN_VARIABLE and value.strip():
                return f"{PLUGIN_VARIABLE} in {path}"
    for folder in _search_path(env):
        if files.kind(f"{folder}/{DEFAULT_PLUGIN}") == "file":
            return f"{folder}/{DEFAULT_PLUGIN}"
    return ""


def nccl_version(machine: Machine, env: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the version of the NCCL that the workers will find, None where that cannot be told from names of files.

    That of a wheel beside the workers' Python goes first: torch's wheels look there. Then LD_LIBRARY_PATH, the Python's own
    `lib` (conda) and the system's folders.
    """
    python = python_of(env, machine.executable)
    prefix = os.path.dirname(os.path.dirname(python)) if os.path.isabs(python) else ""
    folders = machine.library_folders
    if python != machine.executable:
        pythons = (
            [name for name in machine.files.names(f"{prefix}/lib") if name.startswith("python3")] if prefix else []
        )
        folders = tuple(f"{prefix}/lib/{name}/site-packages" for name in pythons)
    libraries = (*_search_path(env), *((f"{prefix}/lib",) if prefix else ()), *_STANDARD_FOLDERS)
    for start, pattern, places in (("nvidia_nccl_cu", _WHEEL, folders), ("libnccl.so.", _LIBRARY, libraries)):
        for folder in places:
            near = [name for name in machine.files.names(folder) if name.startswith(start)]
            if found := [match for name in near if (match := pattern.fullmatch(name))]:
                return max(tuple(map(int, match.group(1).split("."))) for match in found)
    return None


def _search_path(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(folder for folder in env.get("LD_LIBRARY_PATH", "").split(os.pathsep) if os.path.isabs(folder))


def this_machine() -> Machine:
    """Return what may be asked of the node that we are on."""
    import sys

    from robust_run.launcher.agent.workers.this_machine import RealFiles

    def free_bytes(folder: str) -> int | None:
        try:
            about = os.statvfs(folder)
        except OSError:
            return None
        return about.f_bavail * about.f_frsize

    def at_hand() -> str:
        from robust_run.tracer.plugin import build

        return build.at_hand()

    def ensure() -> Plugin:
        from robust_run.tracer.plugin import build

        return build.ensure()

    return Machine(
        files=RealFiles(),
        executable=sys.executable,
        library_folders=tuple(folder for folder in sys.path if os.path.isabs(folder)),
        free_bytes=free_bytes,
        at_hand=at_hand,
        ensure=ensure,
    )
