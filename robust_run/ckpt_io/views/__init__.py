"""Checkpoints seen as files: logical files as they are, tensors as one safetensors file, through Python's open, fsspec and FUSE.

**Invariant:** a view is a description, never a copy; and all its bytes come verified out of the checkpoint.
"""
