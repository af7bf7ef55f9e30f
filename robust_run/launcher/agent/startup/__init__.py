"""Startup profile of the ranks of a node."""
