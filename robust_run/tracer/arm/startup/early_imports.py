"""Which of a program's packages may be imported before it runs and be the same. Loaded in workers by `counting`, once.

What is imported early sees neither the variables that the program sets nor the folders that it puts on its path, and finds what
is installed where the program has a module of that name beside it. So of a program that prepares its imports nothing is kept.
It cannot be seen that a program changed one package (replaced a function of it) before it imported another.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

#: Where packages are installed. Code elsewhere may be the user's own, and may be another one in the next attempt.
INSTALLED = ("site-packages", "dist-packages")
#: Variables that no import reads: those of the launcher, torch.distributed and NCCL (as `warm.identity` has them: a test keeps
#: the two equal), of services that are told of a training, and of the tokenizers, who read theirs when they work.
FREE = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK ROLE_NAME WORLD_SIZE LOCAL_WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "MASTER_ADDR MASTER_PORT USE_LIBUV TORCH_DIST_INIT_BARRIER TORCH_GLOO_LAZY_INIT "
    "CUDA_VISIBLE_DEVICES PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF "
    "OMP_NUM_THREADS MKL_NUM_THREADS TMPDIR TEMP TMP TZ PWD OLDPWD".split()
)
FREE_PREFIXES = ("TORCHELASTIC_", "ROBUST_", "NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_")
READ_LATER = ("WANDB_", "MLFLOW_", "COMET_", "NEPTUNE_", "CLEARML_", "TOKENIZERS_PARALLELISM")
#: Set by torch and frameworks themselves, once they are imported or asked.
SET_BY_PACKAGES = (
    "TORCHINDUCTOR_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK", "PL_GLOBAL_SEED", "PL_SEED_WORKERS", "KMP_INIT_AT_FORK",
    "KMP_DUPLICATE_LIB_OK", "_RJEM_MALLOC_CONF",
    "ACCELERATE_USE_", "ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_", "ACCELERATE_DEEPSPEED_", "FSDP_",
)  # fmt: skip


def may_be_early(
    modules: Mapping[str, Any], path: Sequence[str], began: tuple[Sequence[str], Mapping[str, str]]
) -> list[str]:
    """Return the names of imported modules to keep. `began`: `sys.path` and environment before the program."""
    return [] if changed(began[1], os.environ) else kept(modules, began[0], path, os.path.exists)


def changed(before: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    """Return the variables that the program has set or removed since `before` and that an import may read. Pure."""
    harmless = (*FREE_PREFIXES, *READ_LATER, *SET_BY_PACKAGES)
    return sorted(
        name
        for name in {*before, *env}
        if before.get(name) != env.get(name) and name not in FREE and not name.startswith(harmless)
    )


def kept(modules: Mapping[str, Any], at_start: Sequence[str], now: Sequence[str], exists: Any) -> list[str]:
    """Return the names of modules that were installed and that an earlier import would find in the same place.

    `exists`: whether there is a file or folder of this path.
    """
    before = list(dict.fromkeys(at_start))
    if [path for path in dict.fromkeys(now) if path in before] != before:
        return []
    folders: dict[str, str | None] = {}
    for name, module in list(modules.items()):
        if module is None:
            return []  # the program forbids its import
        if "." not in name and name != "__main__":
            folders[name] = folder_of(module)
    places = tuple(path for path in before if os.path.basename(path) in INSTALLED)
    inside = tuple(os.path.join(place, "") for place in places)  # a package's own parts, as setuptools' distutils
    strange = [
        name
        for name, folder in folders.items()
        if folder is None or (folder and folder not in before and not folder.startswith(inside))
    ]
    if any(is_found(name, before, exists) for name in strange):
        return []
    return [name for name in modules if folders.get(name.partition(".")[0]) in places]


def folder_of(module: Any) -> str | None:
    """Return the folder in which a module was found; empty: it is Python's own; None: it was made by hand."""
    spec = getattr(module, "__spec__", None)
    if spec is None:
        return None
    places = getattr(spec, "submodule_search_locations", None)
    if places:
        return str(os.path.dirname(next(iter(places))))
    origin = getattr(spec, "origin", None)
    return str(os.path.dirname(origin)) if origin and os.path.isabs(origin) else ""


def is_found(name: str, folders: Iterable[str], exists: Any) -> bool:
    """Return whether an import would find a package or module of this name in one of the folders."""
    return any(exists(os.path.join(folder, each)) for folder in folders for each in (name, f"{name}.py"))
