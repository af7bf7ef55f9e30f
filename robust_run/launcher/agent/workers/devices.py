"""Device count behind `--nproc-per-node auto|cpu|gpu|xpu`, without importing torch where the machine can tell.

NVIDIA's driver lists its GPUs under /proc/driver/nvidia/gpus, and CUDA_VISIBLE_DEVICES chooses among them. What
that does not settle (MIG slices, a container that hides devices, accelerators of others, a torch built without CUDA) is
asked of torch in a process of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING

from robust_run.errors import UserError
from robust_run.launcher.model.world import Files, World

if TYPE_CHECKING:
    from robust_run.health.signs.visible_gpus import Gpu

_GPU_FOLDER = "/proc/driver/nvidia/gpus"
_ACCELERATOR_TRACES = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel", "/dev/davinci_manager")
_CUDA_TRACES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""NVIDIA's driver, AMD's (torch calls its GPUs CUDA devices), and Windows' subsystem for Linux."""
_ASK_TIMEOUT_S = 300.0
_ANSWER = re.compile(r"^robust-run counts (\d+)$", re.MULTILINE)
_QUESTIONS = {
    "gpu": "torch.cuda.device_count() if torch.cuda.is_available() else 0",
    "xpu": "torch.xpu.device_count() if torch.xpu.is_available() else 0",
    "auto": "torch.accelerator.device_count() if torch.accelerator.is_available() else 0",
}


def count_workers(kind: str, world: World, *, in_image: bool = False) -> int:
    """Return the number of workers for `cpu`, `gpu`, `xpu` or `auto`. Raises UserError where no such device is.

    `in_image`: workers have another torch than ours, which is taken to be able to use what is here.
    """
    if kind == "cpu":
        return world.cpu_count()
    if kind == "auto":
        return _count_auto(world, in_image=in_image)
    if kind == "gpu":
        known = _known_gpu_count(world, in_image=in_image)
        count = world.ask_torch("gpu") if known is None else known
        if not count:
            hidden = world.env.get("CUDA_VISIBLE_DEVICES")
            because = "" if hidden is None else f" with CUDA_VISIBLE_DEVICES={hidden!r}"
            raise UserError(
                f"--nproc-per-node gpu: no CUDA device on this node{because}; give a number, or use cpu or auto"
            )
        return count
    count = world.ask_torch("xpu")
    if not count:
        raise UserError(
            "--nproc-per-node xpu: no Intel GPU that torch can use on this node; give a number, or use cpu or auto"
        )
    return count


def visible_gpus(files: Files, env: Mapping[str, str]) -> tuple[Gpu, ...] | None:
    """Return the GPUs a worker sees, in its order; None if that cannot be told from outside CUDA."""
    node = _gpus_of_node(files)
    if node is None:
        return None
    chosen = env.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return node
    from robust_run.health.signs.visible_gpus import choose

    return choose(node, chosen)


def has_nvidia(files: Files, env: Mapping[str, str]) -> bool:
    """Whether workers may find an NVIDIA device: its driver is there, and not all is hidden. Two questions to the file system."""
    if not any(files.kind(path) != "missing" for path in ("/dev/nvidiactl", "/dev/dxg")):
        return False
    first = env.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    return bool(first) and first not in ("-1", "NoDevFiles")


def python_of(env: Mapping[str, str], executable: str) -> str:
    """Return the Python that runs the workers: $PYTHON_EXEC, else ours."""
    return env.get("PYTHON_EXEC") or executable


def ask_torch(python: str, kind: str) -> int:
    """Count devices with torch, in a process of its own. Raises UserError if that process cannot tell."""
    code = f"import torch; print('robust-run counts', {_QUESTIONS[kind]})"
    hint = f"give --nproc-per-node a number instead of {kind!r}"
    try:
        run = subprocess.run(
            [python, "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"torch did not count devices within {_ASK_TIMEOUT_S:.0f} s ({python}); {hint}") from None
    except OSError as error:
        raise UserError(f"cannot run {python!r} to count devices ({error.strerror}); {hint}") from None
    answer = _ANSWER.search(run.stdout)
    if answer is None:
        complaint = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
        raise UserError(f"cannot count devices with torch ({complaint}); {hint}")
    return int(answer.group(1))


def _count_auto(world: World, *, in_image: bool) -> int:
    traces = {trace for trace in _ACCELERATOR_TRACES if world.files.kind(trace) != "missing"}
    if any(name.startswith("render") for name in world.files.names("/dev/dri")):
        traces.add("/dev/dri")
    if not traces:
        return world.cpu_count()
    only_nvidia = "/dev/nvidiactl" in traces and traces <= {"/dev/nvidiactl", "/dev/dri"}
    count = _known_gpu_count(world, in_image=in_image) if only_nvidia else None
    return count or world.ask_torch("auto") or world.cpu_count()


def _known_gpu_count(world: World, *, in_image: bool) -> int | None:
    """Return how many CUDA devices torch will find; None if only torch can say."""
    if not any(world.files.kind(path) != "missing" for path in _CUDA_TRACES):
        return 0
    visible = visible_gpus(world.files, world.env)
    if visible is None or not world.files.names(_GPU_FOLDER) or (not in_image and _torch_may_lack_cuda(world)):
        return None
    return len(visible)


def _gpus_of_node(files: Files) -> tuple[Gpu, ...] | None:
    """Return all GPUs the driver lists, by PCI address; None where its list is not what CUDA will find."""
    from robust_run.health.signs.visible_gpus import Gpu  # seldom on the way to the first worker

    found: list[Gpu] = []
    for address in files.names(_GPU_FOLDER):
        facts = dict(_facts(files.text(f"{_GPU_FOLDER}/{address}/information")))
        minor = facts.get("Device Minor", "")
        # Some containers show the whole node's list although only a few of its devices may be opened.
        if not minor.isdecimal() or not files.access(f"/dev/nvidia{minor}", os.R_OK | os.W_OK):
            return None
        if any(name.startswith("gi") for name in files.names(f"/proc/driver/nvidia/capabilities/gpu{minor}/mig")):
            return None
        found.append(Gpu(address, facts.get("GPU UUID", "")))
    return tuple(found)


def _facts(text: str) -> list[tuple[str, str]]:
    pairs = (line.partition(":") for line in text.splitlines())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _torch_may_lack_cuda(world: World) -> bool:
    """Whether the torch that will run is another Python's, or one without CUDA's library beside its own."""
    if world.env.get("PYTHON_EXEC"):
        return True
    for folder in world.library_folders:
        library = os.path.join(world.cwd, folder, "torch", "lib")
        if world.files.kind(library) == "folder":
            return world.files.kind(f"{library}/libtorch_cuda.so") == "missing"
    return True
