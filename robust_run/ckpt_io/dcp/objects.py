"""Objects of a state dict that are no tensors: bytes of torch.save, which are pickle.

DCP's planner loads them without restriction, so that whoever can write a checkpoint can run code wherever it is loaded. Here
an object first goes through `torch.load(weights_only=True)`, which builds plain values only, and what comes out is written anew:
what the planner loads is our own pickle, not the checkpoint's.
"""

from __future__ import annotations

import io

import torch

from robust_run.ckpt_io.dcp.failures import ObjectRefused


def vouched(data: bytes, name: str, url: str, *, trusted: bool) -> io.BytesIO:
    """Return an object's bytes for a planner to load.

    Raises:
        ObjectRefused: It is not trusted and needs more than plain values: a class that `torch.serialization.add_safe_globals`
            was not told of, or code.
    """
    if trusted:
        return io.BytesIO(data)
    try:
        value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        reason = next(
            (line.strip() for line in str(error).splitlines() if "global" in line.lower()), type(error).__name__
        )
        raise ObjectRefused(
            f"object {name!r:.200} of {url} is more than plain values ({reason:.200}); if you trust whoever wrote it, "
            "load it with trust_objects=True, or allow its class with torch.serialization.add_safe_globals"
        ) from error
    fresh = io.BytesIO()
    torch.save(value, fresh)
    fresh.seek(0)
    return fresh
