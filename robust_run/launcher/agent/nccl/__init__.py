"""Tracing of NCCL in the ranks of a node."""
