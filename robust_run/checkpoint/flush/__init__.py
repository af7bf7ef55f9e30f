"""Memory to storage, in the background: one process on each node writes a whole generation as a checkpoint, without torch.

**Invariant:** what it makes visible is what `checkpoint.save` would have written to storage at that step, or nothing.
Nodes agree through the storage alone. The keeper starts it (`robust_run.ckpt_io.memory.flushing.flushes`).
"""
