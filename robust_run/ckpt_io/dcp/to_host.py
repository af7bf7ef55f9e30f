"""Copies of tensors into memory of the CPU. Those of a GPU run side by side with each other, and are waited for once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

Beside = Callable[[Any], AbstractContextManager[None]]


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """While it lasts copies are only begun, after all that the program has begun; when it ends, they are done."""
    if device.type != "cuda":
        yield
        synchronize = getattr(getattr(torch, device.type, None), "synchronize", None)
        if synchronize is not None:
            synchronize(device)
        return
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        stream.synchronize()  # of a copy that failed, too: what was begun before it still writes


def copy_to_host(into: Sequence[torch.Tensor], out_of: Sequence[torch.Tensor], beside: Beside = beside) -> None:
    """Copy tensors, each as a whole, into CPU memory. When it returns, they are there, and what they were copied from may change.

    On the CPU it is one call for all of them. `beside`: what a device's copies are done in.
    """
    on_cpu = [(to, source) for to, source in zip(into, out_of, strict=True) if source.device.type == "cpu"]
    if on_cpu:
        torch._foreach_copy_([to for to, _ in on_cpu], [source for _, source in on_cpu])
    for device in dict.fromkeys(source.device for source in out_of if source.device.type != "cpu"):
        with beside(device):
            for to, source in zip(into, out_of, strict=True):
                if source.device == device:
                    # What is conjugate or negative by a flag is made so on the GPU: torch would do it before the bytes are here.
                    to.copy_(source.resolve_conj().resolve_neg(), non_blocking=True)
