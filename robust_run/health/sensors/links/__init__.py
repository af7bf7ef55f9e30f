"""Sensors of links between nodes: what cards and switches count, and which neighbours are reached."""
