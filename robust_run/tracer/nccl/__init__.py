"""Inside NCCL: a profiler plugin that writes what the library does into a file, and the reader of that file."""
