"""Checkpoints: striped over targets, verified on every read, loaded at the speed of the hardware.

**Invariant:** nothing exists without its manifest, and no byte is handed on that its digest does not vouch for. No pickle is read
from a checkpoint's metadata.

Public are the modules in `__all__` (`from robust_run.ckpt_io import dcp`), and of these the names in their `__all__`. Importing
this package imports none of them.
"""

__all__ = ["catalog", "dcp", "errors"]
