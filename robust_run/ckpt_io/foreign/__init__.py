"""Checkpoints that others wrote: folders of torch.distributed.checkpoint, safetensors files.

**Invariant:** nothing in them is believed before it was checked, and no pickle of theirs can run anything.
"""
