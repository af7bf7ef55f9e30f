"""Checkpoints: striped over targets, verified on every read, loaded at the speed of the hardware.

**Invariant:** nothing exists without its manifest, and no byte is handed on that its digest does not vouch for. No pickle is read
from a checkpoint's metadata.
"""
