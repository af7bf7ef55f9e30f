"""Puts a job together: from the command line to its exit code. Nothing in the launcher imports it."""
