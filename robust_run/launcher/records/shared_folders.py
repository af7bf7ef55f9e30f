"""Whether all nodes of a job see a folder, as far as its kind of file system tells."""

from __future__ import annotations

import os

SHARED_KINDS = (
    "nfs nfs4 lustre gpfs beegfs ceph fuse.ceph-fuse glusterfs fuse.glusterfs wekafs panfs pvfs2 orangefs cifs smb3 afs gfs2"
    " ocfs2 fuse.juicefs fuse.daos fuse.gcsfuse fuse.s3fs 9p virtiofs quobyte fuse.quobyte vastfs dvs"
).split()
VARIABLE = "ROBUST_SHARED_RUNS"
"""1: the run directories are seen by all nodes whatever the file system is; 0: they are not."""


def is_shared(path: str, mounts: str, override: str = "") -> bool:
    """Return whether a path is on a file system that all nodes have.

    `mounts` is /proc/self/mounts. Pure but for links in the path.
    """
    if override in ("0", "1"):
        return override == "1"
    path = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        where = fields[1].replace("\\040", " ").rstrip("/")
        if (path == where or path.startswith(f"{where}/")) and len(where) >= len(best):
            best, kind = where, fields[2]
    return kind in SHARED_KINDS


def on_shared_file_system(path: str) -> bool:
    """Whether a path of this machine, which need not exist, is on a file system that all nodes have."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as file:
            mounts = file.read()
    except OSError:
        mounts = ""
    return is_shared(path, mounts, os.environ.get(VARIABLE, ""))
