"""What `--preload auto` may import: packages known to be harmless to fork after, as far as a program had imported them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

#: Packages that start no thread, touch no device and open nothing when they are imported. The warm process checks them all
#: the same; this list is what it is worth trying.
KNOWN_CLEAN = frozenset(
    "numpy scipy transformers tokenizers safetensors accelerate peft einops torchvision torchaudio torchmetrics timm datasets "
    "pyarrow pandas sklearn PIL yaml tqdm regex sentencepiece tiktoken huggingface_hub packaging filelock fsspec requests "
    "omegaconf hydra jinja2 sympy networkx lightning pytorch_lightning lightning_fabric diffusers".split()
)

#: No more than this: importing is paid for with a core that the running attempt may want.
MOST_MODULES = 4000


def worth_preloading(imported: Iterable[str], already: Iterable[str]) -> tuple[str, ...]:
    """Return which of a program's imported modules to preload too, in the order of their import."""
    known = set(already)
    chosen = [name for name in imported if name not in known and name.partition(".")[0] in KNOWN_CLEAN]
    return tuple(dict.fromkeys(chosen))[:MOST_MODULES]


def read_list(text: str) -> list[str]:
    """Return the names in a worker's list of modules; none if it is not complete yet (it ends with a dot)."""
    lines = text.splitlines()
    if not lines or lines[-1] != ".":
        return []
    return [line for line in lines[:-1] if all(part.isidentifier() for part in line.split("."))]


def to_preload(path: str, already: Iterable[str]) -> tuple[str, ...]:
    """Return what to preload too, by a worker's list in a file; nothing while that is not there or not complete."""
    try:
        with open(path, encoding="utf-8") as file:
            return worth_preloading(read_list(file.read()), already)
    except OSError:
        return ()
