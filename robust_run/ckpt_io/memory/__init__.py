"""Checkpoints in memory: each rank's newest steps, in buffers that outlive its process.

**Invariant:** a part is complete or absent, and what is read is held against its digest.
Nothing here has a name in a file system.
"""
