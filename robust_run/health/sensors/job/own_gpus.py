"""Which GPUs of its node a job may use: those that it may open, of which CUDA_VISIBLE_DEVICES chooses. The rest is others'."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from robust_run.health.sensors.files import names_in, text_or_none
from robust_run.health.sensors.types import SensorWorld
from robust_run.health.signs.visible_gpus import Gpu, choose
from robust_run.health.signs.xids import gpu_name

#: MIG instances as drivers before R470 named them: `MIG-GPU-<uuid of the GPU>/<instance>/<instance>`.
_OLD_MIG = re.compile(r"MIG-(GPU-[0-9a-f-]+)/\d+/\d+")


def used(node: Sequence[Gpu], chosen: str | None) -> frozenset[str] | None:
    """Return the names of the GPUs that a job may use, as sensors have them; None where that is not known. Pure.

    `node`: those that it may open; `chosen`: CUDA_VISIBLE_DEVICES, None where that is not set.
    """
    if chosen is None or (len(node) == 1 and "MIG-" in chosen):
        return frozenset(gpu_name(gpu.pci_address) for gpu in node)
    whole = ",".join(dict.fromkeys(_OLD_MIG.sub(r"\1", each.strip()) for each in chosen.split(",")))
    needs_uuids = "GPU-" in whole and not all(gpu.uuid for gpu in node)
    visible = None if needs_uuids else choose(node, whole)
    return None if visible is None else frozenset(gpu_name(gpu.pci_address) for gpu in visible)


def of_node(world: SensorWorld) -> tuple[Gpu, ...]:
    """Return the GPUs that NVIDIA's driver lists and that may be opened here, by PCI address; none where it lists none."""
    folder = f"{world.proc}/driver/nvidia/gpus"
    found = []
    for address in names_in(folder, 64):
        text = text_or_none(f"{folder}/{address}/information") or ""
        pairs = (line.partition(":") for line in text.splitlines())
        facts = {name.strip(): value.strip() for name, _, value in pairs}
        minor = facts.get("Device Minor", "")
        # Some containers show the whole node's list although only a few of its devices may be opened.
        if not minor.isdecimal() or os.access(f"{world.dev}/nvidia{minor}", os.R_OK | os.W_OK):
            found.append(Gpu(address, facts.get("GPU UUID", "")))
    return tuple(found)
