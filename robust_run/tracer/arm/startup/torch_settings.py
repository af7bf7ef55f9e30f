"""Whether the program has set variables that torch reads while it is imported. Loaded in workers by `sitecustomize`, once.

What is imported before the program runs would not see them.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: How names of variables begin that torch reads while it is imported (its compiler, above all).
READ_BY_TORCH = tuple(
    "TORCH PYTORCH TRITON INDUCTOR AOT CUTEDSL_ CUTLASS_ DUMP_AOTI ENABLE_ FAKE_ LOG_ PARTITIONER_ PT2_ SYMPY_ MPMATH_ UNSAFE_ "
    "CXX TMPDIR".split()
)
SET_PER_WORKER = ("TORCHELASTIC_", "TORCH_NCCL_", "TORCH_FR_")
#: Set by accelerate and transformers when they are imported, and by the warm process while it imports.
SET_BY_FRAMEWORKS = "PYTORCH_NVML_BASED_CUDA_CHECK"
#: Torch sets it where the user did not.
CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def are_the_programs() -> bool:
    """Return whether one of them is another than at the start of this process. Raises OSError."""
    with open("/proc/self/environ", "rb") as file:
        return differ(file.read(), os.environ, default_cache_folder())


def default_cache_folder() -> str:
    """Return the folder for compiled code that torch has put into the environment, if it did; empty: unknown."""
    folders = sys.modules.get("torch._inductor.runtime.cache_dir_utils")
    try:
        return str(folders.default_cache_dir()) if folders is not None else ""
    except Exception:
        return ""


def differ(at_start: bytes, env: Mapping[str, str], cache_folder: str) -> bool:
    """Return whether a variable that torch reads is another than at the start. Pure.

    `at_start`: as in /proc/PID/environ. `cache_folder`: what torch sets by itself.
    """
    began = dict(
        pair.partition("=")[::2] for pair in at_start.decode("utf-8", errors="surrogateescape").split("\0") if pair
    )
    changed = [
        name
        for name in {*began, *env}
        if name.startswith(READ_BY_TORCH) and not name.startswith(SET_PER_WORKER) and began.get(name) != env.get(name)
    ]
    return any(
        name != SET_BY_FRAMEWORKS and (name != CACHE_FOLDER or env.get(name) != cache_folder) for name in changed
    )
