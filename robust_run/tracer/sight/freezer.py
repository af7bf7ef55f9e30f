"""Which cgroup has frozen a process: `cgroup.freeze` of version 2, `freezer.state` of version 1, its own or one above it.

A frozen process looks like one that sleeps (version 2) or is blocked in the kernel (version 1), and no signal shows it.
What lies outside our cgroup namespace, or is mounted nowhere here, is not seen.

Sources: cgroups(7), kernel.org cgroup-v2 "cgroup.freeze", cgroup-v1 "freezer-subsystem".
"""

from __future__ import annotations

import os

MOUNTS = "/sys/fs/cgroup"
#: Cgroups above one another that are looked at.
DEPTH = 32
_TEXT_BYTES = 64 * 1024


def frozen_by(pid: int, root: str = "/proc", mounts: str = MOUNTS) -> str:
    """Return the file by which a process is frozen, and can be thawed; "" if it is not, or that cannot be seen."""
    for line in beginning_of(f"{root}/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in path.split("/"):
            continue
        found = ""
        if number == "0" and not controllers:
            found = _frozen_above(path, (mounts, f"{mounts}/unified"), "cgroup.freeze", ("1",))
        elif "freezer" in controllers.split(","):
            mounted = (f"{mounts}/{controllers}", f"{mounts}/freezer")
            found = _frozen_above(path, mounted, "freezer.state", ("FROZEN", "FREEZING"))
        if found:
            return found
    return ""


def _frozen_above(path: str, mounted: tuple[str, ...], name: str, frozen: tuple[str, ...]) -> str:
    """Return the file of the outermost cgroup that is frozen: what is below it thaws with it."""
    parts = [part for part in path.split("/") if part][:DEPTH]
    for mount in mounted:
        if not os.path.exists(f"{mount}/cgroup.procs"):
            continue
        for length in range(len(parts) + 1):
            file = "/".join((mount, *parts[:length], name))
            if beginning_of(file).strip() in frozen:
                return file
    return ""


def beginning_of(path: str) -> str:
    """Return the beginning of a small file; "" if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            return (file.read(_TEXT_BYTES) or b"").decode("utf-8", errors="surrogateescape")
    except (OSError, ValueError):
        return ""
