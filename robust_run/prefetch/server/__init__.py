"""The block server: a process that shows one image as a read-only file, through FUSE, while its blocks are being fetched.

`start(...)` mounts the file, starts the process and keeps it: the process that calls it (the *keeper*) holds /dev/fuse and some
shared memory, so a server that is killed is replaced under the live mount, and no request is lost. When the keeper goes, the
server takes the mount away and leaves.

**Invariant:** every request that was taken from the kernel is in shared memory until it is answered.
"""

from robust_run.prefetch.server.config import Background, ServeOptions
from robust_run.prefetch.server.handle import ServerHandle, start

__all__ = ["Background", "ServeOptions", "ServerHandle", "start"]
