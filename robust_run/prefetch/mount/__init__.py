"""Making a file system of an image: what this machine allows, which way is taken and why no better one, and the ways themselves.

**Invariant:** everything is mounted in a mount namespace that belongs to us alone, so it is gone with our last process, whatever
ends it. A mount in a namespace that others share would be pinned by any of them that copies it.
"""
