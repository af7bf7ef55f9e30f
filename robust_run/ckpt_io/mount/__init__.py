"""Checkpoints as plain files: a FUSE mount, served by a process of its own.

**Invariant:** the process that serves a mount never reads it (it would wait for itself), and hands on no byte
that was not verified.
"""
