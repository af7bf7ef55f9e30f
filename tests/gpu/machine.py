"""What there is to test with."""

from __future__ import annotations

import os

#: The first NCCL with an interface that the plugin speaks.
FIRST_NCCL = (2, 26)


def why_not() -> str:
    """Return why nothing can be tested on a GPU here; empty: it can."""
    if not os.path.exists("/dev/nvidiactl"):
        return "there is no NVIDIA GPU here (/dev/nvidiactl)"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} has no CUDA or no device of it"
    version = nccl_version()
    if version < FIRST_NCCL:
        return f"NCCL {'.'.join(map(str, version))} has no interface for the plugin; it begins with 2.26"
    return ""


def nccl_version() -> tuple[int, ...]:
    """Return the version of torch's NCCL; nothing without one."""
    import torch

    try:
        version = torch.cuda.nccl.version()
    except (AttributeError, RuntimeError):
        return ()
    return tuple(version) if isinstance(version, tuple) else ()


def versions() -> dict[str, str]:
    """Return what results depend on."""
    import platform

    import torch

    found = {
        "torch": torch.__version__,
        "NCCL": ".".join(map(str, nccl_version())),
        "Python": platform.python_version(),
    }
    if torch.cuda.is_available():
        found |= {"GPU": torch.cuda.get_device_name(0), "CUDA": str(torch.version.cuda)}
    return found | {"kernel": platform.release()}
