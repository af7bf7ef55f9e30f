"""Which GPUs of a node CUDA_VISIBLE_DEVICES leaves. Pure; imported before the first worker starts."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec


class Gpu(msgspec.Struct, frozen=True):
    """One NVIDIA GPU of the node."""

    pci_address: str
    """As /proc and /sys write it: `0000:1b:00.0`."""
    uuid: str = ""


def choose(node: Sequence[Gpu], chosen: str) -> tuple[Gpu, ...] | None:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order; None if only CUDA can tell. Pure."""
    visible: list[Gpu] = []
    for word in chosen.split(","):
        name = word.strip()
        if re.fullmatch(r"\d+", name):
            matching = tuple(node[int(name) : int(name) + 1])
        elif name.startswith("GPU-"):
            matching = tuple(gpu for gpu in node if gpu.uuid.startswith(name))
        elif name.startswith("MIG-"):
            return None
        else:
            matching = ()
        if len(matching) != 1:
            break  # CUDA ignores a wrong entry and all that follow it
        if matching[0] in visible:
            return None  # what CUDA makes of a device named twice is its own business
        visible.append(matching[0])
    return tuple(visible)
