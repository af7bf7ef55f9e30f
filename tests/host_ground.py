"""What simulated hosts (see hosts.py) stand on: namespaces, cgroups, clocks, and the removal of what a killed run left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "robust-hosts-"
"""Of a switch's command line and of cgroups; then the pid and start time of the harness, so its death can be seen."""
TOOLS = ("ip", "unshare", "nsenter", "mount", "sh")
CALL_S = 60.0

SWITCH = """
exec 9</proc
ip -batch - <<BATCH
link add br0 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
link set br0 addrgenmode none
link set br0 up
BATCH
exec "$@"
"""
"""The switch is process 1 of its pid namespace and keeps the machine's /proc (9), to know its pid outside."""

BEFORE_UNSHARE = """
exec 8</proc/self/ns/net 9</proc
exec "$@"
"""
"""A host keeps the switch's network (8) until its cable is plugged in."""

UNSHARE_HOST = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork"]

BOOT = """
if [ -n "$3" ]; then echo 0 > "$3/cgroup.procs"; fi
for place in $(sed -n 's/^[^ ]* \\([^ ]*\\) fuse\\.rrck .*/\\1/p' /proc/mounts); do umount -n -l "$place" || :; done
ip -batch "$1/card"
nsenter --net=/proc/self/fd/8 ip -batch "$1/port"
exec 8<&-
echo "$2" > /proc/sys/kernel/hostname
mount -n --bind "$1/../hosts" /etc/hosts
mount -n -t tmpfs tmpfs /dev/shm
mount -n -t tmpfs tmpfs /run
mkdir -m 700 /run/tmp /run/user /run/cgroup
mount -n --rbind /sys/fs/cgroup /run/cgroup
mount -n -t sysfs sysfs /sys
mount -n --move /run/cgroup /sys/fs/cgroup
rmdir /run/cgroup
mount -n -t proc proc /proc
shift 3
exec "$@"
"""
"""$1: the host's folder, $2: its name, $3: its cgroup, if any; the rest is process 1.

A new /sys shows the host's own network cards. Mounted checkpoints of other tests would live as long as the host does, with the
processes that serve them."""


def why_not() -> str:
    """Return why this machine cannot have hosts, after trying; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts in namespaces need Linux and root"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"hosts in namespaces need {', '.join(missing)}, not found in PATH"
    links = "ip link add name b type bridge; ip link add name a type veth peer name c"
    trial = f"{links}; mount -t tmpfs t /run; mount -t proc p /proc"
    try:
        done = subprocess.run([*UNSHARE_HOST, "sh", "-ec", trial], capture_output=True, text=True, timeout=CALL_S)
    except subprocess.TimeoutExpired:
        return "hosts in namespaces: making one took too long"
    return "" if done.returncode == 0 else f"hosts in namespaces cannot be made here: {' '.join(done.stderr.split())}"


def ip(pid: int, lines: str, ignore: str = "nothing") -> None:
    """Run `ip` commands, one a line, in the network of a process. AssertionError if one is refused for another reason."""
    argv = ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"]
    done = subprocess.run(argv, input=lines + "\n", capture_output=True, text=True, timeout=CALL_S)
    assert done.returncode == 0 or ignore in done.stderr, f"ip refused {lines!r}: {done.stderr}"


# Processes


def started(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def pids_in_namespace_of(pid: int) -> list[int]:
    """Return the processes of a pid namespace, as seen from here."""
    ours, found = os.readlink(f"/proc/{pid}/ns/pid"), []
    for other in _all_pids():
        with suppress(OSError):
            if os.readlink(f"/proc/{other}/ns/pid") == ours:
                found.append(other)
    return found


def innermost_pid(pid: int) -> int:
    """Return the number of a process in its own pid namespace; 0 if it is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


# Clocks


def skew_kind(skew_s: int) -> str:
    """Return which clocks of a host can be shifted here."""
    monotonic = ["monotonic"] if Path("/proc/self/ns/time").exists() else []
    wall = ["wall"] if _faketime_library() else []
    return "+".join([*monotonic, *wall]) or "none" if skew_s else "none"


def unshare_time(skew_s: int) -> list[str]:
    """Return the options of `unshare` that shift the clocks since boot."""
    return ["--time", "--monotonic", str(skew_s), "--boottime", str(skew_s)]


def _faketime_library() -> str:
    places = (Path(folder).glob(pattern) for folder in ("/usr/lib", "/usr/lib64") for pattern in FAKETIME)
    return next((str(path) for found in places for path in found), "")


FAKETIME = ("*/faketime/libfaketime.so.1", "faketime/libfaketime.so.1")


def faketime(skew_s: int) -> dict[str, str]:
    """Return the variables that shift the wall clock of a process and of its children, and of nothing else."""
    off = dict.fromkeys(("FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC", "NO_FAKE_STAT"), "1")
    return {"LD_PRELOAD": _faketime_library(), "FAKETIME": f"{skew_s:+d}", **off}


# Cgroups


def _cgroup_home() -> Path | None:
    """Return our own folder of the second version's hierarchy, if we may make cgroups there."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(place, os.W_OK):
            return Path(place)
    return None


def make_cgroup(mark: str, name: str) -> Path | None:
    """Make the cgroup of a host; None where there can be none."""
    home = _cgroup_home()
    if home is None:
        return None
    path = home / mark / name
    try:
        path.mkdir(parents=True)
    except OSError:
        return None
    return path if (path / "cgroup.freeze").exists() else None


def remove_cgroups(mark: str) -> None:
    """Remove the cgroups of a cluster whose processes are gone."""
    home = _cgroup_home()
    if home is None or not (home / mark).is_dir():
        return
    give_up_at = time.monotonic() + CALL_S
    names: list[str] = []
    with suppress(FileNotFoundError):  # somebody else sweeps too
        names = [name for name in os.listdir(home / mark) if (home / mark / name).is_dir()]
    for path in [*(home / mark / name for name in names), home / mark]:
        while path.is_dir():
            try:
                path.rmdir()
            except OSError:  # the kernel is still taking the last process away
                assert time.monotonic() < give_up_at, f"processes are left in {path}"
                time.sleep(0.002)


def freeze(cgroup: Path | None, pids: Callable[[], list[int]]) -> list[int]:
    """Stop all processes of a host; return those that were stopped one by one, by a signal."""
    if cgroup:
        _set_frozen(cgroup, True)
        return []
    stopped: list[int] = []
    while new := [pid for pid in pids() if pid not in stopped and _state(pid) not in "TZX"]:
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        stopped += new
    return stopped


def thaw(cgroup: Path | None, stopped: list[int]) -> None:
    """Undo `freeze`."""
    if cgroup:
        _set_frozen(cgroup, False)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "X"


def _set_frozen(cgroup: Path, frozen: bool) -> None:
    (cgroup / "cgroup.freeze").write_text(str(int(frozen)))
    give_up_at = time.monotonic() + CALL_S
    while f"frozen {int(frozen)}" not in (cgroup / "cgroup.events").read_text():
        assert time.monotonic() < give_up_at, f"{cgroup} does not become frozen={frozen}"
        time.sleep(0.001)


# What a killed harness left


def _owner_lives(mark: str) -> bool:
    pid, _, start = mark.removeprefix(MARK).rpartition("-")[0].partition("-")
    return not pid.isdigit() or started(int(pid)) == start


def sweep() -> None:
    """End switches and remove cgroups whose harness is dead. A switch ends by itself, unless a fork holds its socket."""
    for pid in _all_pids():
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            marks = [word.decode() for word in words if word.startswith(MARK.encode())]
            if not any(word.endswith(b"/host_init.py") for word in words) or not marks or _owner_lives(marks[0]):
                continue
            if Path(f"/proc/{pid}").stat().st_uid == os.geteuid():
                os.kill(pid, signal.SIGKILL)
    home = _cgroup_home()
    for path in home.glob(f"{MARK}*") if home else []:
        if not _owner_lives(path.name):
            remove_cgroups(path.name)
