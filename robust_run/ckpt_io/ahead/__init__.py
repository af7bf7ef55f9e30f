"""A checkpoint fetched ahead: a node's process brings its units into memory while workers import, and they take them from there.

**Invariants:** the memory is a file without a name (memfd), so nothing is left when its process and its readers are gone. A
reader verifies each unit, and goes to the store for what is not there, not in time, or not right: it is never worse off for long.
"""
