"""A mount namespace of one's own: as root by that alone, as an ordinary user inside a user namespace."""

from __future__ import annotations

import os
from collections.abc import Callable

from robust_run.mounts import syscalls
from robust_run.mounts.errors import MountRefused


def enter(*, as_user: bool) -> None:
    """Give this process a mount namespace, and with `as_user` a user namespace around it. For a process with one thread.

    In the user namespace we are root: the one user and group that exist there are ours. Files of other users
    show as owned by `nobody`. Mounts of the host still arrive. Raises `MountRefused`.
    """
    _enter(0, 0, syscalls.follow_only, as_user=as_user)


def enter_as_oneself() -> bool:
    """Give this process (as root: this thread) a mount namespace; without root, in a user namespace, where one has one thread.

    Returns whether it is a user namespace. User and group keep their numbers. No mount of the host arrives.
    Raises `MountRefused`.
    """
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        try:
            _enter(user, group, syscalls.make_private, as_user=False)
            return False
        except MountRefused:  # root of a container may lack the right, too
            pass
    _enter(user, group, syscalls.make_private, as_user=True)
    return True


def _enter(user: int, group: int, separate: Callable[[], None], *, as_user: bool) -> None:
    """`user`, `group`: what our own are in the user namespace; `separate`: from the mounts of the host."""
    maps = {
        "setgroups": "deny",  # without it an ordinary user may map no group
        "uid_map": f"{user} {os.geteuid()} 1",
        "gid_map": f"{group} {os.getegid()} 1",
    }
    try:
        syscalls.unshare(syscalls.NEW_MOUNTS | (syscalls.NEW_USER if as_user else 0))
        for name, text in maps.items() if as_user else ():
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
        separate()
    except OSError as error:
        what = "user and mount namespace" if as_user else "mount namespace"
        raise MountRefused(f"no private {what}: {error.strerror}: {_advice(as_user)}") from error


def _advice(as_user: bool) -> str:
    """Return where this machine forbids it, as far as it tells."""
    if not as_user:
        return "it needs CAP_SYS_ADMIN: run as root of the machine, or in a privileged container"
    for path, closed in _SWITCHES.items():
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == closed:
                    return f"{path} is {closed}: have the administrator change it"
        except OSError:
            continue
    return "user namespaces are forbidden here (a container's seccomp profile, or the kernel)"


_SWITCHES = {
    "/proc/sys/user/max_user_namespaces": "0",
    "/proc/sys/kernel/unprivileged_userns_clone": "0",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1",
}
