"""Where an image of an environment may be shown in this machine's own tree. Pure.

A block map names the folder, and may come from anybody: one that names a folder of the system would put its files in the place
of the machine's own, and one that hides what the job itself lies in could not run it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

#: Nothing of an image is shown in these, nor in their stead.
_CLOSED = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")
#: Nor in the stead of these; in them, users have folders of their own.
_SHARED = frozenset(
    "/data /home /media /mnt /opt /root /run /run/user /scratch /srv /tmp /usr/local /var /var/cache /var/lib /var/log /var/run"
    " /var/spool /var/tmp /usr/local/bin /usr/local/etc /usr/local/include /usr/local/lib /usr/local/lib64 /usr/local/libexec"
    " /usr/local/sbin /usr/local/share /usr/local/src".split()
)


def why_not(mount_at: str, lie_in_it: Mapping[str, str] | None = None) -> str:
    """Return why an image cannot be shown at a folder, as a clause; "" where it can.

    `mount_at`: absolute, without '..'. `lie_in_it`: what must be seen, path → what it is.
    """
    path = posixpath.normpath(mount_at)
    closed = any(is_in(path, each) for each in _CLOSED) and not is_in(path, "/usr/local")
    if path == "/" or closed or path in _SHARED:
        return "that is a folder of the system"
    for each, what in (lie_in_it or {}).items():
        if each and is_in(each, path):
            return f"it would hide {what} ({each})"
    return ""


def is_in(path: str, folder: str) -> bool:
    """Whether a path is a folder, or lies in it. For paths without '..'."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
