"""The rungs a job climbs when nothing explains its failures, after ByteRobust §4.2-4.3.

diagnose → evict or reattempt → roll back → replay → stop with everything known. **Invariant:** pure; it names what to do and
why, and the caller does it.
"""
