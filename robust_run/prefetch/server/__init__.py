"""The block server: a process that shows one image as a read-only file, through FUSE, while its blocks are being fetched.

`start(...)` mounts the file, starts the process and keeps it: the process that calls it (the *keeper*) holds /dev/fuse and some
shared memory, so a server that is killed is replaced under the live mount, and no request is lost. When the keeper goes, the
server takes the mount away and leaves.

**Invariant:** every request that was taken from the kernel is in shared memory until it is answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from robust_run.prefetch.server.config import Background, ServeOptions

if TYPE_CHECKING:
    from robust_run.prefetch.server.handle import ServerHandle, start

__all__ = ["Background", "ServeOptions", "ServerHandle", "start"]


def __getattr__(name: str) -> Any:
    """Import the keeper's side when it is asked for: the server's own process, for which a start waits, does not need it."""
    if name in ("ServerHandle", "start"):
        from robust_run.prefetch.server import handle

        return getattr(handle, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
