"""Forks that take the place of processes started from nothing: whether a process may be forked, and what a fork is called."""
