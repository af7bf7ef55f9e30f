"""Versions of a job's code as files: captured, kept as trees, merged."""
