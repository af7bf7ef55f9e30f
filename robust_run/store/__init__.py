"""Bytes somewhere else: local files, HTTP, HDFS, whatever fsspec knows; in ranges, in parallel, with an end to every wait.

**Invariant:** a buffer is not touched any more once the call that it was given to has returned, and no wait is without a limit.
"""
