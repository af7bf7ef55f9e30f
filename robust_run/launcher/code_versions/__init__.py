"""Versions of a job's code: captured, kept, merged, checked, sent to nodes, put in place, and taken back when they fail."""
