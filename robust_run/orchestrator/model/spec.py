"""What is asked for: the roles of a job. No behaviour."""

from __future__ import annotations

from typing import Literal

import msgspec

Restart = Literal["together", "alone", "job"]
"""together: the role is one world, which the launcher heals as one. alone: each member is a world, and heals without the others.
job: one world, and when it fails all roles begin again."""


Ready = Literal["started", "called"]
"""started: a member is ready when its workers run. called: when each of its ranks has called `robust_run.roles.ready()`."""


Scale = Literal["asked", "demand"]
"""asked: a role has the members that it was asked to have. demand: it gives back those that are idle, and takes more while its
consumers wait for it (`elastic.demand`)."""


Ends = Literal["job", "role"]
"""What it means when a role's workers have all ended well. job: the job is done, the other roles are told to end."""


MANY = 1 << 16
"""Workers, or CPUs, of one machine, where nothing says how many there are."""


class RoleSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One role, as asked for."""

    name: str
    command: tuple[str, ...]
    """What `robust-run` is given after its options: a script, `-m module` or a program, and its arguments."""
    members: int = 1
    fewest: int = 1
    """Fewer members than that end the job."""
    most: int = 1
    """So many may run (`robust roles scale`)."""
    nproc: int = 1
    """Workers of each member and node."""
    nodes: int = 1
    """Nodes of each member."""
    restart: Restart = "together"
    depends_on: tuple[str, ...] = ()
    """Roles that must be ready before this one is started."""
    ready: Ready = "started"
    ends: Ends = "role"
    options: tuple[str, ...] = ()
    """Further options of `robust-run` for each member."""
    env: tuple[tuple[str, str], ...] = ()
    devices: int = 0
    """GPUs of each worker; 0: it sees all of its node's."""
    scale: Scale = "asked"
    cpus: int = 0
    """CPUs of each worker; 0: they are not counted."""
    where: str = ""
    """Label of the nodes it runs on; empty: any."""
    max_restarts: int = 3
    """Restarts of a member in a row without progress, as `--max-restarts`; and so often it is started anew after that."""


class RolesSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job of several roles."""

    name: str
    roles: tuple[RoleSpec, ...]
    queue_items: int = 1024
    queue_bytes: int = 256 << 20
    lease_s: float = 600.0
    scale_after_s: float = 600.0
    """How long a need, or idleness, must last before a role of `scale = "demand"` is given a member more or less."""

    def role(self, name: str) -> RoleSpec:
        """Return a role by name. Raises KeyError."""
        return next(each for each in self.roles if each.name == name) if name in self.names else _none(name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the roles, in the order of the file."""
        return tuple(each.name for each in self.roles)


def _none(name: str) -> RoleSpec:
    raise KeyError(name)
