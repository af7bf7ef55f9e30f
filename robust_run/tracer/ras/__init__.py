"""A second witness for jobs on NCCL: what NCCL's own RAS subsystem (since 2.24) says of its communicators."""
