"""The outside world as bytes: ranged, parallel reads and writes over local files, HTTP, HDFS and all that fsspec opens.

**Invariant:** it knows bytes and paths, never what they mean. No call waits for ever for a peer that is silent; no buffer is
touched after the call that was given it has returned; a file is seen whole or not at all.
"""
