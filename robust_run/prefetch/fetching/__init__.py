"""Fetching blocks: what next, from where, and how often again (`queue`, pure); the threads that do it (`workers`); sources.

**Invariant:** a block enters the cache, or a reader's hands, only after its digest was compared.
"""
