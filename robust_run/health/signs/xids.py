"""What the numbers mean that NVIDIA's driver gives to errors of a GPU (Xid), and how near each is to a broken GPU.

After NVIDIA's catalogue of Xid errors. `device`: the GPU, its memory or its links are broken or need a reset, also with a
sound program. `program`: what a wrong program causes too, and mostly does: never taken for the device's fault by itself
(of illegal memory accesses in large jobs two thirds were user code: ByteRobust, table 2). `unsure`: either. `harmless`:
tells of something that was dealt with.
"""

from __future__ import annotations

from typing import Literal

XidClass = Literal["device", "program", "unsure", "harmless"]

XIDS: dict[int, tuple[XidClass, str]] = {
    13: ("program", "exception in a kernel (illegal access or instruction)"),
    31: ("program", "memory page fault in a kernel"),
    32: ("unsure", "invalid or corrupted push buffer stream"),
    38: ("unsure", "driver firmware error"),
    43: ("program", "a program on the GPU was stopped"),
    45: ("harmless", "the work of a program was cleaned up after an error or its end"),
    46: ("device", "the GPU stopped processing"),
    48: ("device", "uncorrectable error in GPU memory (double-bit ECC)"),
    54: ("device", "auxiliary power is not connected"),
    61: ("unsure", "internal micro-controller breakpoint"),
    62: ("device", "internal micro-controller halt"),
    63: ("harmless", "a row of GPU memory was remapped or retired"),
    64: ("device", "a row of GPU memory could not be remapped or retired"),
    68: ("unsure", "video processor exception"),
    69: ("program", "graphics engine class error in a kernel"),
    74: ("device", "NVLink error"),
    79: ("device", "the GPU has fallen off the bus"),
    92: ("unsure", "many corrected ECC errors"),
    94: ("unsure", "uncorrectable ECC error, contained in one program"),
    95: ("device", "uncorrectable ECC error, not contained"),
    109: ("unsure", "context switch timeout"),
    110: ("device", "security fault"),
    119: ("device", "the GPU's system processor (GSP) does not answer"),
    120: ("device", "error of the GPU's system processor (GSP)"),
    121: ("unsure", "corrected error on the link between CPU and GPU"),
    140: ("device", "uncorrectable ECC error that needs a reset"),
    143: ("device", "the GPU could not be initialised"),
    144: ("unsure", "NVLink: error of a link or switch"),
    145: ("unsure", "NVLink: error of the link's physical layer"),
    149: ("unsure", "NVLink: error of a link or switch"),
    154: ("device", "the GPU needs a recovery action"),
}

#: These lose the GPU for the driver itself.
LOST = frozenset((79,))


def meaning(number: int) -> str:
    """Return what an Xid says, for people."""
    return XIDS[number][1] if number in XIDS else "not in our list of Xid errors"


def class_of(number: int) -> XidClass:
    """Return how near an Xid is to a broken GPU; `unsure` for one that is not listed."""
    return XIDS[number][0] if number in XIDS else "unsure"


def gpu_name(bus_id: str) -> str:
    """Return one name for a GPU however its PCI address is written: `GPU 0000:3b:00`."""
    text = bus_id.strip().lower().removeprefix("pci:").rstrip(":")
    parts = text.partition(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0000", *parts]
    if len(parts) != 3:
        return f"GPU {text[:40]}"
    domain, bus, device = parts
    return f"GPU {domain[-4:]:0>4}:{bus}:{device}"[:40]
