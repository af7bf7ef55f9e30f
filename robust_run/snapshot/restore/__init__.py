"""Putting a snapshot back where it was captured, one rung per module; which rung is decided elsewhere.

**Invariant:** all of it is restored or none, and what cannot be restored here is refused with the reason.
"""
