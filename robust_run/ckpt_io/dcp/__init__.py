"""Checkpoints of ours through `torch.distributed.checkpoint`: sharded state dicts, saved and loaded by any numbers of ranks.

**Invariant:** no pickle of a checkpoint is loaded that could run code, unless the caller says that it is trusted.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.ckpt_io.dcp.background import async_save
    from robust_run.ckpt_io.dcp.helpers import load, load_whole, save
    from robust_run.ckpt_io.dcp.reader import RobustReader
    from robust_run.ckpt_io.dcp.writer import RobustWriter
    from robust_run.ckpt_io.errors import ObjectRefused, PeerFailed

__all__ = ["ObjectRefused", "PeerFailed", "RobustReader", "RobustWriter", "async_save", "load", "load_whole", "save"]

_PLACES = {
    "ObjectRefused": "robust_run.ckpt_io.errors",
    "PeerFailed": "robust_run.ckpt_io.errors",
    "RobustReader": "robust_run.ckpt_io.dcp.reader",
    "async_save": "robust_run.ckpt_io.dcp.background",
    "RobustWriter": "robust_run.ckpt_io.dcp.writer",
}
"""Where names are that are not in `helpers`."""


def __getattr__(name: str) -> object:
    """Import what is asked for: torch.distributed.checkpoint takes a second, and modules beside it do without."""
    if name not in __all__:
        raise AttributeError(f"module 'robust_run.ckpt_io.dcp' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "robust_run.ckpt_io.dcp.helpers")), name)
