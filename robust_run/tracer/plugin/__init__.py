"""Our profiler plugin for NCCL: its source, its build, and the readers of the files that it writes."""
