"""Saving and loading by one process that asks no other, in any process group: `no_dist=True`, which torch 2.6 lacks."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch.distributed.checkpoint as dcp


def save_alone(state: dict[str, Any], writer: Any, planner: Any) -> None:
    """Save. Raises what `dcp.save` raises."""
    if _can("save"):
        dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer releases have another way
        dcp.save_state_dict(state, writer, no_dist=True, planner=planner)


def load_alone(state: dict[str, Any], reader: Any) -> None:
    """Load in place. Raises what `dcp.load` raises."""
    if _can("load"):
        dcp.load(state, storage_reader=reader, no_dist=True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        dcp.load_state_dict(state, reader, no_dist=True)


def _can(name: str) -> bool:
    return "no_dist" in inspect.signature(getattr(dcp, name)).parameters
