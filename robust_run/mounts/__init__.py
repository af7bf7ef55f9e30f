"""Private mounts: what this machine allows, found by trying, and the system calls, namespaces and file systems themselves.

**Invariant:** everything is mounted in a mount namespace that belongs to us alone, so it is gone with our last process, however
that ends. A mount in a namespace that others share would be pinned by any of them that copies it.
"""
