"""Preload list: modules worth importing once a program is seen to use them, known to be harmless to fork after."""

from __future__ import annotations

from collections.abc import Iterable

#: What torch itself imports late: a program's first optimizer imports it, which takes as long as torch did. No program names
#: it, so it is not left to `--preload auto`. Only for programs that do not set what these modules read (see `list_modules` in
#: tracer/arm/sitecustomize.py): imported before the program runs, they would not see it.
LATE = ("torch._dynamo",)

#: For `--preload auto`, which is the default. Packages that start no thread, touch no device and open nothing when they are
#: imported. The warm process checks them all the same; this list is what it is worth trying. Workers list only what an earlier
#: import would find the same (see `early_imports` in tracer/arm).
KNOWN_CLEAN = frozenset(
    "numpy scipy transformers tokenizers safetensors accelerate peft einops torchvision torchaudio torchmetrics timm datasets "
    "pyarrow pandas sklearn PIL yaml tqdm regex sentencepiece tiktoken huggingface_hub packaging filelock fsspec requests "
    "omegaconf hydra jinja2 sympy networkx lightning pytorch_lightning lightning_fabric diffusers".split()
)

#: No more than this: importing is paid for with a core that the running attempt may want.
MOST_MODULES = 4000


def worth_preloading(imported: Iterable[str], *, everything: bool) -> tuple[str, ...]:
    """Return which of a program's imported modules to preload, in the order of their import.

    `everything`: what `--preload auto` may import, and not only what torch has imported late.
    """
    chosen = [name for name in imported if name in LATE or (everything and name.partition(".")[0] in KNOWN_CLEAN)]
    return tuple(dict.fromkeys(chosen))[:MOST_MODULES]


def batches(modules: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the modules in the order given, those of one package together, what torch imports late by itself.

    After each batch a warm process looks whether it may still be forked; the batch that spoiled it is left out the next time.
    """
    packages: dict[str, list[str]] = {}
    for name in modules:
        packages.setdefault(name if name in LATE else name.partition(".")[0], []).append(name)
    return [tuple(names) for names in packages.values()]


def read_list(text: str) -> list[str] | None:
    """Return the names in a worker's list of modules; None if it is not complete yet (it ends with a dot)."""
    lines = text.splitlines()
    if not lines or lines[-1] != ".":
        return None
    return [line for line in lines[:-1] if all(part.isidentifier() for part in line.split("."))]


def publish(path: str, modules: Iterable[str]) -> None:
    """Let nodes that stand by see what this one found worth it, where they share the folder. Raises nothing: it is a hint."""
    from contextlib import suppress

    from robust_run.atomic_file import write_file

    with suppress(OSError):
        write_file(path, "\n".join((*modules, ".")).encode(), mode=0o600)


def to_preload(path: str, *, everything: bool) -> tuple[str, ...] | None:
    """Return what to preload, by a worker's list in a file; None while that is not there or not complete."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            imported = read_list(file.read())
    except OSError:
        return None
    return None if imported is None else worth_preloading(imported, everything=everything)
