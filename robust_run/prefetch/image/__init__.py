"""Image files: what is in one, and how one is made of a folder or of an OCI layout. Always squashfs in the end.

**Invariant:** nothing that an image, a layer or a header says makes us write outside the folder we were given, or read more than
a limit that is ours.
"""
