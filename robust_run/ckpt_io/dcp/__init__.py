"""Checkpoints of ours through `torch.distributed.checkpoint`: sharded state dicts, saved and loaded by any numbers of ranks.

**Invariant:** no pickle of a checkpoint is loaded that could run code, unless the caller says that it is trusted.
"""

from robust_run.ckpt_io.dcp.failures import ObjectRefused, PeerFailed
from robust_run.ckpt_io.dcp.helpers import async_save, load, load_whole, save
from robust_run.ckpt_io.dcp.reader import RobustReader
from robust_run.ckpt_io.dcp.writer import RobustWriter

__all__ = ["ObjectRefused", "PeerFailed", "RobustReader", "RobustWriter", "async_save", "load", "load_whole", "save"]
