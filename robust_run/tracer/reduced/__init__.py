"""Reduced values are the same on all ranks of a group, bit by bit: where one differs, a machine is at fault."""
