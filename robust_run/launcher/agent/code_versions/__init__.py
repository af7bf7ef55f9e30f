"""Versions of the code on a node: fetched, put in place for each attempt."""
