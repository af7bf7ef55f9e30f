"""Degradation: a job that is slower than it was, or than it was meant to be: who or what is at fault, and what it costs. Pure."""
