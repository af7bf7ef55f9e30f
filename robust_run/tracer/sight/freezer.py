"""Which cgroup has frozen a process: `cgroup.freeze` of version 2, `freezer.state` of version 1, its own or one above it.

A frozen process looks like one that sleeps (version 2) or is blocked in the kernel (version 1), and no signal shows it.
What lies outside our cgroup namespace, or is mounted nowhere here, is not seen.

Sources: cgroups(7), kernel.org cgroup-v2 "cgroup.freeze", cgroup-v1 "freezer-subsystem".
"""

from __future__ import annotations

import os
from collections.abc import Iterator

MOUNTS = "/sys/fs/cgroup"
#: Cgroups above one another that are looked at.
DEPTH = 32
_TEXT_BYTES = 64 * 1024


def frozen_by(pid: int, root: str = "/proc", mounts: str = MOUNTS) -> str:
    """Return the file by which a process is frozen, and can be thawed; "" if it is not, or that cannot be seen."""
    for mounted, path, is_unified in cgroups_of(pid, "freezer", root, mounts):
        name, frozen = ("cgroup.freeze", ("1",)) if is_unified else ("freezer.state", ("FROZEN", "FREEZING"))
        if found := _frozen_above(path, mounted, name, frozen):
            return found
    return ""


def cgroups_of(pid: int, controller: str, root: str, mounts: str) -> Iterator[tuple[tuple[str, ...], list[str], bool]]:
    """Yield the cgroups of a process that a controller may act in: where mounted, the path in there, whether of version 2."""
    for line in beginning_of(f"{root}/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part][:DEPTH]
        if ".." in path.split("/"):
            continue
        if number == "0" and not controllers:
            yield (mounts, f"{mounts}/unified"), parts, True
        elif controller in controllers.split(","):
            yield (f"{mounts}/{controllers}", f"{mounts}/{controller}"), parts, False


def _frozen_above(parts: list[str], mounted: tuple[str, ...], name: str, frozen: tuple[str, ...]) -> str:
    """Return the file of the outermost cgroup that is frozen: what is below it thaws with it."""
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
