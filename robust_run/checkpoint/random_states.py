"""The states of random number generators, as plain values: Python's, numpy's if it is imported, torch's."""

from __future__ import annotations

import importlib
import random
import sys
from contextlib import suppress
from typing import Any

import torch


def take() -> dict[str, Any]:
    """Return all states of this process."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": _bytes(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        said = numpy.random.get_state()
        if isinstance(said, tuple):  # a program may have put another generator in its place
            name, keys, position, has_gauss, gauss = said
            states["numpy"] = [str(name), keys.tobytes(), int(position), int(has_gauss), float(gauss)]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = _bytes(torch.cuda.get_rng_state())
    return states


def put(states: dict[str, Any]) -> None:
    """Set the generators to what `take` returned."""
    random.setstate(states["python"])
    torch.set_rng_state(_tensor(states["torch"]))
    if "numpy" in states:
        with suppress(ImportError):
            numpy = importlib.import_module("numpy")
            name, keys, *rest = states["numpy"]
            numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor(states["cuda"]))


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.numpy()) if "numpy" in sys.modules else bytes(tensor.tolist())


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
