"""What a block device is by its name, and what it stands on: an error of a node's disk is told from one of an image or a server.

An error of a loop device is one of the file behind it: an image that is fetched as it is read, a snapshot. One of a device
that is put together of others (LVM, encryption, thin volumes) shows on the disk below it, too, if it is a disk that fails.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Literal

from robust_run.health.sensors.files import names_in, word
from robust_run.health.sensors.types import SensorWorld

Kind = Literal["disk", "file", "passing", "stacked", "served"]
"""disk: of the node (also what is not known by its name). file: a loop device. passing: memory, and what is put in and taken
out. stacked: made of other devices. served: another machine is behind it."""

_KINDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"loop\d"), "file"),
    (re.compile(r"(?:ram|zram|sr|fd)\d"), "passing"),
    (re.compile(r"(?:dm-|zd)\d"), "stacked"),
    (re.compile(r"(?:nbd|rbd|drbd)\d"), "served"),
)
#: Devices that one stands on, at most; and how deep.
MOST_BELOW, DEEPEST = 256, 8


def kind_of(device: str) -> Kind:
    """Return what a device is, by its name in the kernel's log: `nvme0n1p2`, `dm-0`, `loop3`. Pure."""
    return next((kind for pattern, kind in _KINDS if pattern.match(device)), "disk")


def name_of(number: str, world: SensorWorld) -> str:
    """Return the name of a device by its `major:minor`; empty where that is none of a block device."""
    try:
        return os.path.basename(os.readlink(f"{world.sys}/dev/block/{number}"))
    except OSError:
        return ""


def number_of(device: str, world: SensorWorld) -> str:
    """Return a device's `major:minor`; empty where it is not known."""
    return word(f"{world.sys}/class/block/{device}/dev") if "/" not in device else ""


def below(devices: Iterable[str], world: SensorWorld) -> set[str]:
    """Return these devices and all that they stand on: a partition's disk, the parts of a stacked one."""
    found: set[str] = set()
    open_ = [(device, 0) for device in devices]
    while open_ and len(found) < MOST_BELOW:
        device, depth = open_.pop()
        if not device or device in found or depth > DEEPEST:
            continue
        found.add(device)
        folder = f"{world.sys}/class/block/{device}"
        parts = names_in(f"{folder}/slaves", MOST_BELOW)
        if word(f"{folder}/partition"):
            parts.append(os.path.basename(os.path.dirname(os.path.realpath(folder))))
        open_ += [(part, depth + 1) for part in parts]
    return found
