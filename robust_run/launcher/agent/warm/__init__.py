"""Warm processes: standby workers that have imported what they need, and become workers by a fork."""
