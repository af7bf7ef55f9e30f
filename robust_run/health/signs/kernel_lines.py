"""What lines of the kernel's log mean. Pure.

A line counts where its form is one that the kernel, or a driver of a device that training uses, is known to print.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from robust_run.health.signs.xids import LOST, gpu_name, meaning

MOST_LINE_CHARS = 1024
MOST_DETAIL_CHARS = 300


class Meaning(NamedTuple):
    """What a line tells: an event's name, subject and number."""

    name: str
    subject: str = ""
    number: int = 0
    words: str = ""
    """What it means, for people, where the line itself does not say it."""
    pid: int = 0
    """The process whose work on a GPU it was, as the kernel numbers it; 0: the line does not say."""
    driver: str = ""
    """Of a network interface."""
    cgroup: str = ""
    """Of a process that was killed for memory, where another line said it (see `killed_in`)."""


class KilledIn(NamedTuple):
    """What the kernel says of a kill before the line that tells of it."""

    pid: int
    cgroup: str


_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{5,24})\): (\d{1,5})(?:, pid='?(\d{1,10})\b)?")

_KILLED_IN = re.compile(r"^oom-kill:constraint=.{0,400},task_memcg=([^,]{1,400}),task=.{0,64},pid=(\d{1,10}),uid=")

_KILLED = re.compile(
    r"^(?P<cgroup>Memory cgroup o|O)ut of memory[^:]*: Killed process (?P<id>\d+) \((?P<of>[^)]{0,64})\)"
    r"(?:.*\banon-rss:(?P<kib>\d{1,15})kB)?"
)

_MACHINE_CHECK = re.compile(
    r"Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: [0-9a-f]+ Bank \d+: ([0-9a-f]{1,16})\b"
)
_UNCORRECTED = 1 << 61
"""Of a bank's status (Intel SDM 3B, 16.3.2.2; AMD's is the same): corrected errors are logged in the same words."""

#: Event, what it looks like. A group named `of` is the subject; `id` a number. The first that fits counts.
_FORMS: tuple[tuple[str, str], ...] = (
    ("kernel.panic", r"^Kernel panic - not syncing"),
    ("kernel.oops", r"^(?:BUG: (?:unable to handle|kernel NULL)|kernel BUG at |Oops: |general protection fault)"),
    ("kernel.lockup", r"BUG: soft lockup - (?P<of>CPU#\d+)|(?:hard LOCKUP on cpu (?P<id>\d+))"),
    ("kernel.rcu_stall", r"^rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stalls?\b"),
    ("kernel.hung_task", r"^INFO: task (?P<of>.{1,64}):(?P<id>\d+) (?:<[^>]*> )?blocked .*for more than \d+ seconds"),
    ("hardware.corrected", r"AER: Corrected error|^EDAC MC\d+: \d+ CE |Corrected error, no action required"),
    ("hardware.pcie", r"(?P<of>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d): .*AER: .*Uncorrect(?:ed|able)"),
    (
        "hardware.machine_check",
        r"^EDAC MC\d+: \d+ UE |^\[Hardware Error\]: (?:event severity: (?:fatal|recoverable)|Uncorrected error)"
        r"|^mce: Uncorrected |^Memory failure: 0x",
    ),
    ("hardware.machine_check_logged", r"^mce: \[Hardware Error\]: Machine check events logged"),
    ("disk.read_only", r"^EXT4-fs \((?P<of>[^)]{1,64})\): Remounting filesystem read-only"),
    ("disk.read_only", r"^XFS \((?P<of>[^)]{1,64})\): .*(?:[Ss]hutting down filesystem|has been shut down)"),
    ("disk.read_only", r"^BTRFS(?:: error| error| info) \(device (?P<of>[^)]{1,64})\).*forced readonly"),
    ("disk.lost", r"^nvme (?P<of>nvme\d+): (?:Disabling device after reset failure|Removing after probe failure)"),
    ("disk.lost", r"^sd [\d:]+: \[(?P<of>sd\w+)\] .*DID_NO_CONNECT"),
    ("disk.timeout", r"^nvme (?P<of>nvme\d+): (?:controller is down; will reset|I/O (?:tag )?\d+.* timeout)"),
    ("disk.error", r"(?:I/O error|critical (?:medium|target) error), dev (?P<of>[\w-]{1,64})"),
    ("disk.error", r"^Buffer I/O error on (?:dev|device) (?P<of>[\w-]{1,64})"),
    ("disk.error", r"^EXT4-fs error \(device (?P<of>[^)]{1,64})\)"),
    ("disk.error", r"^XFS \((?P<of>[^)]{1,64})\): (?:metadata I/O error|.*[Cc]orruption)"),
    ("mount.not_responding", r"^nfs: server (?P<of>\S{1,128}) not responding"),
    (
        "network.device_hung",
        r"NETDEV WATCHDOG: (?P<of>[\w.-]{1,64}) \((?P<by>[\w.-]{1,64})\).*transmit queue \d+ timed out",
    ),
    ("network.device_hung", r"^mlx5_core (?P<of>[0-9a-f:.]{7,16}).*(?:health compromised|device's health)"),
    ("gpu.lost", r"NVRM: (?:The )?GPU at (?:PCI:)?(?P<of>[0-9A-Fa-f:.]{5,24}).*has fallen off the bus"),
    (
        "gpu.driver",
        r"NVRM: (?:.{0,40}?\b(?P<of>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d))?.{0,80}"
        r"(?:rm_init_adapter failed|RmInitAdapter failed|GPU initialization failed)",
    ),
    ("cpu.hot", r"^(?P<of>CPU\d+): (?:Core|Package) temperature (?:is )?above threshold"),
)
_PATTERNS = tuple((name, re.compile(form)) for name, form in _FORMS)


def meaning_of(line: str) -> Meaning | None:
    """Return what a line of the kernel's log tells, None where it tells nothing that we know."""
    text = line[:MOST_LINE_CHARS]
    xid = _XID.search(text)
    if xid is not None:
        number = int(xid.group(2))
        name = "gpu.lost" if number in LOST else f"gpu.xid.{number}"
        return Meaning(
            name, gpu_name(xid.group(1)), number, f"Xid {number}: {meaning(number)}", pid=int(xid.group(3) or 0)
        )
    check = _MACHINE_CHECK.search(text)
    if check is not None:
        is_bad = int(check.group(1), 16) & _UNCORRECTED
        return Meaning("hardware.machine_check" if is_bad else "hardware.corrected")
    killed = _KILLED.search(text)
    if killed is not None:
        return Meaning("memory.oom_kill", killed["of"], int(killed["id"]), _why_killed(killed))
    for name, pattern in _PATTERNS:
        found = pattern.search(text)
        if found is not None:
            groups = found.groupdict()
            subject = groups.get("of") or ""
            number = int(groups.get("id") or 0)
            subject = gpu_name(subject) if name.startswith("gpu.") and subject else subject
            return Meaning(name, subject, number, driver=groups.get("by") or "")
    return None


def killed_in(line: str) -> KilledIn | None:
    """Return in which cgroup a process is that is about to be killed for memory, as the kernel says in a line of its own."""
    found = _KILLED_IN.match(line[:MOST_LINE_CHARS])
    return KilledIn(int(found.group(2)), found.group(1)) if found is not None else None


def _why_killed(killed: re.Match[str]) -> str:
    why = "the limit of its cgroup was reached" if killed["cgroup"] != "O" else "the node's memory was used up"
    return f"{why} (it held {int(killed['kib']) >> 10} MiB)" if killed["kib"] else why
