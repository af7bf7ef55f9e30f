"""Where NCCL's RAS of one job listens on one node.

NCCL's default is port 28028 for every job of the machine, so two jobs on a host answer for each other. Each job gets a port of
its own on each node instead. All its processes there listen on it together (NCCL binds with SO_REUSEPORT), and any one of them
answers for the whole job. The port is held by a socket that never listens: no other program gets it, and nothing arrives there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

VARIABLE = "NCCL_RAS_ADDR"
SWITCH = "NCCL_RAS_ENABLE"
#: Only this node can reach it: any process that reaches it may ask, and NCCL knows no secret.
HOST = "127.0.0.1"


class RasPort:
    """A port for the RAS of one job on this node. Made once for a job, of any number of attempts; nothing here raises."""

    def __init__(self) -> None:
        self._held: socket.socket | None = None
        self._failed = False

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return what workers with this environment are to be given besides; nothing where the user decided about RAS."""
        if VARIABLE in environment or environment.get(SWITCH, "1").strip() == "0":
            return {}
        address = self._take()
        return {VARIABLE: address} if address else {}

    @property
    def address(self) -> str:
        """Where workers were told to listen, `127.0.0.1:40123`; empty: they were told nothing."""
        return f"{HOST}:{self._held.getsockname()[1]}" if self._held is not None else ""

    def _take(self) -> str:
        """Take a port if none is held yet; return the address, or nothing where there is none to be had."""
        import socket

        if self._held is None and not self._failed:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                held.bind((HOST, 0))
            except OSError:
                held.close()
                self._failed = True
                return ""
            self._held = held
        return self.address

    def close(self) -> None:
        """Give the port up."""
        if self._held is not None:
            self._held.close()
            self._held = None
