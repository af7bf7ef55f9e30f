"""A device inside a check program: torch set up so that the same work gives the same bits, and what to call it.

Settings that make it so are read when libraries start, so `open_device` must come before anything else imports torch.
Measured with torch 2.13 on AVX-512 CPUs: see docs/checks.md.
"""

from __future__ import annotations

import os
import platform
from collections.abc import MutableMapping
from typing import Any

from robust_run.health.diagnostics.others import OthersWork, beside_this_process
from robust_run.health.diagnostics.program import RefusedError, one_line
from robust_run.own_process import collect_as_ever, collect_seldom

#: cuBLAS takes one workspace per stream and does not share it; oneMKL chooses one code path for any alignment.
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "MKL_CBWR": "AUTO,STRICT", "NVIDIA_TF32_OVERRIDE": "0"}


class Device:
    """One device that a check works on."""

    def __init__(self, name: str, torch: Any, kind: str) -> None:
        self.name = name
        self.torch = torch
        self.kind = kind
        """Results of devices of one kind must be equal bit by bit."""
        self.is_cuda = name.startswith("cuda")
        self._cores = sorted(os.sched_getaffinity(0))

    def sync(self) -> None:
        """Wait until all work is done."""
        if self.is_cuda:
            self.torch.cuda.synchronize()

    def turn_to(self, number: int) -> str:
        """Go on with the next core of a CPU, round and round; return its name, empty for other devices.

        A core that computes wrongly is found only by work on that core.
        """
        if self.is_cuda:
            return ""
        core = self._cores[number % len(self._cores)]
        try:
            os.sched_setaffinity(0, {core})
        except OSError:  # a core that went offline, or not ours to choose
            return ""
        return f"core {core}"

    def others(self, alike: int = 1) -> OthersWork | None:
        """Return what looks at others' work from now on; None where CPUs do not decide how fast it is.

        `alike`: processes of this check on this node, which all do the same.
        """
        return None if self.is_cuda else beside_this_process(self._cores, alike)

    def free_bytes(self) -> int:
        """Return how much memory is free."""
        if self.is_cuda:
            return int(self.torch.cuda.mem_get_info()[0])
        return available_memory_bytes()


def open_device(name: str, *, threads: int | None = 1) -> Device:
    """Import torch and return the device. Raises RefusedError where there is no such device, or no torch.

    `threads`: of a CPU. One makes results the same on any number of cores; None leaves it to torch.
    """
    prepare(os.environ)
    collect_seldom()  # a fifth of the import
    try:
        import torch
    except Exception as error:
        raise RefusedError(f"torch cannot be imported: {one_line(f'{type(error).__name__}: {error}')}") from error
    collect_as_ever()
    settle(torch)
    if name == "cpu":
        if threads is not None:
            torch.set_num_threads(threads)
        return Device(name, torch, _cpu_kind(torch))
    family, _, number = name.partition(":")
    if family != "cuda" or not number.isdigit():
        raise RefusedError(f"device {name!r} is neither cpu nor cuda:N")
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number) >= found:
        raise RefusedError(f"{name}: torch {torch.__version__} sees {found} CUDA devices")
    torch.cuda.set_device(int(number))
    model = torch.cuda.get_device_name(int(number))
    return Device(name, torch, f"{model}, torch {torch.__version__}, CUDA {torch.version.cuda}")


def prepare(env: MutableMapping[str, str]) -> None:
    """Set what libraries read when they start."""
    env.update(DETERMINISTIC)


def settle(torch: Any) -> None:
    """Choose the same algorithms every time, and no lower precision than asked for.

    `use_deterministic_algorithms` does the same, and tells torch's compiler too, which a check has no use for: importing it takes
    as long as torch.
    """
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    matmul = torch.backends.cuda.matmul
    matmul.allow_tf32 = False
    matmul.allow_bf16_reduced_precision_reduction = False


def available_memory_bytes() -> int:
    """Return the host's available memory, at most what the cgroup still allows; 1 GiB where it cannot be told."""
    found = 1 << 30
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    found = int(line.split()[1]) << 10
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            text = file.read().strip()
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            used = int(file.read())
        if text.isdigit():
            found = min(found, max(int(text) - used, 0))
    except (OSError, ValueError):
        pass
    return found


def cpu_model() -> str:
    """Return the CPU's name."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return one_line(line.partition(":")[2])
    except OSError:
        pass
    return platform.machine()


def _cpu_kind(torch: Any) -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu_model()}, {capability}, torch {torch.__version__}, {torch.get_num_threads()} threads"
