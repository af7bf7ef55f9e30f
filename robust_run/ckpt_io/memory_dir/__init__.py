"""A folder in memory that unmodified programs save into, with storage below it (`--ckpt-memory-dir`).

**Invariant:** a name stands for what was closed in good order, as a whole, in memory and in storage; and nothing is removed from
storage while what was written before that is in memory alone.
"""
