"""Fail-slow: who makes every step longer. Own time of each step against the peers that do the same work. Pure."""
