"""Lazy images: a program starts from an image file that is not there yet, and the blocks it needs first are fetched first.

**Invariant:** no byte reaches a reader that does not match the block map, wherever it came from. No read waits for ever.
"""
