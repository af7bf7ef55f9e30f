"""Reads from the kernel what `robust_run.tracer.wake` judges: system calls, descriptors, other ends, owners of locks."""
