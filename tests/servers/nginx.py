"""A real nginx that serves a folder on several ports of loopback, each connection held to a rate by the kernel.

The listening sockets carry SO_MAX_PACING_RATE, which accepted connections inherit: nginx's own limit_rate gives every request its
first second for free, so it does not hold short ranges back. Without nginx, the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

_SO_MAX_PACING_RATE = 47
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_UP_S = 60.0


def nginx_program() -> str:
    """Return the path of nginx; skips the test where it is not installed."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if found is None:
        pytest.skip("nginx is not installed (Debian: nginx-light)")
    return found


@contextmanager
def running_nginx(
    folder: Path, *, ports: int = 1, bytes_per_s: int = 0, tls: tuple[str, str] | None = None
) -> Iterator[list[str]]:
    """Serve a folder for the length of a block; give a URL per port. `bytes_per_s` is per connection, 0 without limit.

    `tls` names certificate and key: https then.
    """
    program = nginx_program()
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listener(bytes_per_s)) for _ in range(ports)]
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="robust-nginx-")))
        state.chmod(0o755)
        numbers = [listener.getsockname()[1] for listener in listeners]
        (state / "nginx.conf").write_text(_configuration(state, folder, numbers, tls))
        descriptors = [listener.fileno() for listener in listeners]
        environment = {"PATH": os.defpath, "NGINX": "".join(f"{number};" for number in descriptors)}
        with (state / "output").open("wb") as output:
            command = [program, "-c", str(state / "nginx.conf"), "-e", str(state / "error.log")]
            process = subprocess.Popen(command, env=environment, pass_fds=descriptors, stdout=output, stderr=output)
        try:
            _wait_until_up(process, state)
            yield [f"{'https' if tls else 'http'}://127.0.0.1:{number}" for number in numbers]
        finally:
            process.terminate()
            process.wait(_UP_S)


def _listener(bytes_per_s: int) -> socket.socket:
    listener = socket.socket()
    if bytes_per_s:
        listener.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("Q", bytes_per_s))
    listener.bind(("127.0.0.1", 0))
    listener.listen(511)
    listener.setblocking(False)  # nginx does not do that itself with sockets it inherits
    return listener


def _configuration(state: Path, folder: Path, ports: list[int], tls: tuple[str, str] | None) -> str:
    places = " ".join(f"{kind}_temp_path {state}/{kind};" for kind in _TEMPORARY)
    user = "user root;" if os.geteuid() == 0 else ""
    listen = " ".join(f"listen 127.0.0.1:{port}{' ssl' if tls else ''};" for port in ports)
    secure = f"ssl_certificate {tls[0]}; ssl_certificate_key {tls[1]};" if tls else ""
    return f"""worker_processes 2; pid {state}/pid; daemon off; {user}
events {{ worker_connections 1024; }}
http {{ access_log off; sendfile on; sendfile_max_chunk 512k; tcp_nodelay on; keepalive_requests 100000; {places}
  server {{ {listen} {secure} root {folder}; }} }}
"""


def _wait_until_up(process: subprocess.Popen[bytes], state: Path) -> None:
    """Its pid file is written when it serves."""
    give_up_at = time.monotonic() + _UP_S
    while not (state / "pid").exists():
        said = (state / "output").read_text(errors="replace")
        assert process.poll() is None, f"nginx ended with {process.returncode}: {said}"
        assert time.monotonic() < give_up_at, f"nginx is not up after {_UP_S:g} s: {said}"
        time.sleep(0.01)
