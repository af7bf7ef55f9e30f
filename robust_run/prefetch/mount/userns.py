"""A mount namespace of one's own: as root by that alone, as an ordinary user inside a user namespace whose root one is."""

from __future__ import annotations

import os

from robust_run.prefetch.errors import MountRefused
from robust_run.prefetch.mount import syscalls


def enter(*, as_user: bool) -> None:
    """Give this process a mount namespace, and with `as_user` a user namespace around it. For a process with one thread.

    In the user namespace we are root: the one user and group that exist there are ours. Files of others belong to nobody.

    Raises `MountRefused`.
    """
    user, group = os.geteuid(), os.getegid()
    try:
        syscalls.unshare(syscalls.NEW_MOUNTS | (syscalls.NEW_USER if as_user else 0))
        if as_user:
            _write("setgroups", "deny")  # without it an ordinary user may map no group
            _write("uid_map", f"0 {user} 1")
            _write("gid_map", f"0 {group} 1")
        syscalls.follow_only()
    except OSError as error:
        what = "user and mount namespace" if as_user else "mount namespace"
        raise MountRefused(f"no private {what}: {error.strerror}: {_advice(as_user)}") from error


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
        file.write(text)


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
