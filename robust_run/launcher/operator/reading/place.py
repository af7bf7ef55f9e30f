"""API endpoint of a job: the files `api.sock`, `api.json` and `token` of its run directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.errors import PlatformError
from robust_run.report.files import open_regular

SCHEMA = 1
#: How an address begins that every machine has for itself.
LOOPBACK = ("127.", "[::1]", "localhost")

SOCKET_NAME, PLACE_NAME, TOKEN_NAME = "api.sock", "api.json", "token"

_LARGEST_BYTES = 64 << 10


class ApiEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Content of `api.json`."""

    schema: int = SCHEMA
    socket: str = ""
    """Path of the Unix socket, absolute; empty: there is none."""
    http: str = ""
    """Like `https://gpu-1:8080`; empty: no port is served."""
    tls_ca: str = ""
    """File, on the controller's machine, with which its certificate can be checked; empty: as usual."""
    pid: int
    host: str
    """Host name of the controller."""
    boot: str = ""
    """The boot of the kernel that it runs on, which containers share and machines of one name do not; empty: not known."""

    @property
    def is_loopback(self) -> bool:
        """Whether its web server can be reached from its own machine alone."""
        return self.http.partition("://")[2].startswith(LOOPBACK)


def this_boot() -> str:
    """Return what tells this machine, since it was started, from every other; empty where the kernel does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def read_place(run_directory: str) -> ApiEndpoint | None:
    """Return where the API is; None where it never was or has been closed. Raises PlatformError for a file of another shape."""
    path = os.path.join(run_directory, PLACE_NAME)
    data = read_small(path)
    if data is None:
        return None
    try:
        place = json_decoder(ApiEndpoint).decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PlatformError(f"{path!r} does not say where the controller is: {error}") from error
    if place.schema > SCHEMA:
        raise PlatformError(f"{path!r} has schema {place.schema}, this robust reads up to {SCHEMA}; use a newer one")
    return place


def write_place(run_directory: str, place: ApiEndpoint) -> None:
    """Write `api.json` in one step, readable by its owner alone. Raises OSError."""
    path = os.path.join(run_directory, PLACE_NAME)
    write_file(path, msgspec.json.encode(place) + b"\n", draft=f"{path}.{place.pid}.tmp", mode=0o600)


def remove_place(run_directory: str, place: ApiEndpoint) -> None:
    """Remove `api.json` unless another controller has written its own by now. Never raises."""
    with suppress(OSError, PlatformError):
        if read_place(run_directory) == place:
            os.unlink(os.path.join(run_directory, PLACE_NAME))


def read_small(path: str) -> bytes | None:
    """Return a small file's content; None if it is not there. Raises PlatformError if it cannot be read or is too large."""
    try:
        with open_regular(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlatformError(f"cannot read {path!r}: {error.strerror}") from error
    if len(data) > _LARGEST_BYTES:
        raise PlatformError(f"{path!r} has more than {_LARGEST_BYTES} bytes; it is not what robust-run wrote")
    return data


@contextmanager
def short_address(path: str) -> Iterator[str]:
    """Yield an address for a Unix socket's path that fits the 107 bytes of one, however long the path is. Raises OSError."""
    folder = os.open(os.path.dirname(path) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def listen_unix(path: str) -> socket.socket:
    """Return a socket that listens at this path for its owner alone; one that is there is replaced. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short_address(path) as address:
            listener.bind(address)
            os.chmod(address, 0o600)  # no process can have connected: it does not listen yet
        listener.listen(64)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
