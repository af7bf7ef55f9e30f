"""What programs inside an image see of the host. Pure.

The kernel's file systems, the places that a job works in, names and addresses of the network: without them a program that runs
outside would not run inside. Everything else is the image's own.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence

from robust_run.errors import UserError
from robust_run.prefetch.inside.types import Bind

_KERNEL = ("/proc", "/sys", "/dev")
#: Of the host, because the job runs on it: how names become addresses, what time it is.
_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/hostname", "/etc/localtime")
#: Nothing may be put over these: programs could not run, or would not be the image's.
_FORBIDDEN = ("/", "/proc", "/sys", "/dev")


def standard(
    *,
    working_directory: str,
    home: str | None,
    run_directory: str | None,
    folders: Sequence[str] = (),
    more: Sequence[Bind] = (),
) -> tuple[Bind, ...]:
    """Return what is bound into a root file system; `more` is the user's own and wins over ours.

    `folders`: others that are bound where the host has them: TMPDIR, and what the names above really are where they lead through
    links.
    """
    ours = [Bind(source=path, destination=path) for path in _KERNEL]
    ours += [Bind(source=path, destination=path, read_only=True, optional=True) for path in _NETWORK]
    ours.append(Bind(source="/tmp", destination="/tmp"))  # noqa: S108 - the host's, as it is
    if home and home != "/":
        ours.append(Bind(source=home, destination=home, optional=True))
    for path in (working_directory, run_directory):
        if path and path != "/":
            ours.append(Bind(source=path, destination=path))
    ours += [Bind(source=path, destination=path, optional=True) for path in folders if path not in _FORBIDDEN]
    return ordered([*ours, *more])


def ordered(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    """Return them so that a folder comes before what lies in it, one for each destination: the last that was given."""
    last = {os.path.normpath(bind.destination): bind for bind in binds}
    return tuple(last[path] for path in sorted(last, key=lambda path: (path.count("/"), path)))


def parse(text: str) -> Bind:
    """Return the bind that `--bind SRC[:DST][:ro]` asks for. Raises `UserError`."""
    parts = text.split(":")
    read_only = len(parts) > 1 and parts[-1] in ("ro", "rw") and parts.pop() == "ro"
    if len(parts) > 2 or not all(parts):
        raise UserError(f"--bind {text!r}: expected SRC[:DST][:ro], paths without colons")
    source = parts[0] if parts[0].startswith("/") else os.path.abspath(parts[0])
    destination = parts[-1] if len(parts) == 2 else source
    if not destination.startswith("/"):
        raise UserError(f"--bind {text!r}: {destination!r} is not absolute, and the image has no working directory")
    if ".." in destination.split("/") or "\0" in text:
        raise UserError(f"--bind {text!r}: {destination!r} leads upwards; name the folder itself")
    destination = os.path.normpath(destination)
    if destination in _FORBIDDEN:
        raise UserError(f"--bind {text!r}: nothing can be put over {destination} of an image")
    return Bind(source=source, destination=destination, read_only=read_only)


# --- Names of users and groups inside: the image's, and the one line each for who we are, as programs ask for our own name. Pure.


def passwd(image: str, uid: int, gid: int, name: str, home: str) -> str | None:
    """Return the image's `/etc/passwd` with us in it; None where it knows our number already."""
    return _with(image, uid, lambda: f"{_word(name) or 'user'}:x:{uid}:{gid}::{_word(home) or '/'}:/bin/sh")


def group(image: str, gid: int, name: str) -> str | None:
    """Return the image's `/etc/group` with our group in it; None where it knows its number already."""
    return _with(image, gid, lambda: f"{_word(name) or 'group'}:x:{gid}:")


def _with(image: str, number: int, line: Callable[[], str]) -> str | None:
    rows = [row.split(":") for row in image.splitlines()]
    if any(len(row) > 2 and row[2] == str(number) for row in rows):
        return None
    return f"{image.rstrip(chr(10))}\n{line()}\n".lstrip("\n")


def _word(text: str) -> str:
    return "" if set(text) & set(":\n\0") else text


# --- The driver's own libraries: they must fit the host's kernel module, so programs in an image need the host's, not its own.
#
# Only NVIDIA's: of AMD's driver nothing but the device files is the host's. Everything above the driver (CUDA's runtime, NCCL,
# cuDNN) is the image's own.

#: Where they lie in the image; last on LD_LIBRARY_PATH.
FOLDER = "/.robust-driver"
_DEVICE = "/dev/nvidiactl"
_LINE = re.compile(r"\s*(?P<name>\S+) \((?P<kind>[^)]*)\) => (?P<path>/.+)")
_OF_THE_DRIVER = re.compile(r"lib(cuda|cudadebugger|nvcuvid|nvoptix|nvidia-(?!container)[a-z0-9-]+)\.so(\.\d+)*")
_KINDS = {"x86_64": "x86-64", "aarch64": "AArch64"}
_MOST = 200


def driver_binds(lines: Iterable[str], machine: str) -> tuple[Bind, ...]:
    """Return what of `ldconfig -p` is the driver's, to be bound into `FOLDER`. Pure."""
    kind = _KINDS.get(machine, "")
    found: dict[str, str] = {}
    for line in lines:
        matched = _LINE.fullmatch(line.rstrip("\n"))
        if matched and kind in matched["kind"] and _OF_THE_DRIVER.fullmatch(matched["name"]):
            found.setdefault(matched["name"], matched["path"])
    return tuple(
        Bind(source=path, destination=f"{FOLDER}/{name}", read_only=True, optional=True)
        for name, path in sorted(found.items())[:_MOST]
    )


def of_this_host() -> tuple[Bind, ...]:
    """Return the driver's libraries here; none where there is no NVIDIA device, or the linker's table cannot be read."""
    if not os.path.exists(_DEVICE):
        return ()
    tool = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.access(path, os.X_OK)), None)
    if tool is None:
        return ()
    try:
        listed = subprocess.run([tool, "-p"], capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return ()
    return driver_binds(listed.stdout.decode("utf-8", "replace").splitlines(), platform.machine())
