"""Copying checkpoints: to this machine, resumable and verified, and from one format to another.

**Invariant:** what is not whole has another name, or no manifest; a copy that died goes on where it was.
"""
