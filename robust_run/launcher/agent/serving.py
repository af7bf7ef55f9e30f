"""What an agent asks of its event loop. No behaviour."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    import socket

    from robust_run.launcher.agent.attempt import Attempt


class Serving(Protocol):
    """The event loop of an agent, see `agent.loop.AgentLoop`: there is none until the first workers have been started."""

    def stop(self) -> None:
        """The agent is not needed any more."""
        ...

    def later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        """Call after a time."""
        ...

    def call_soon(self, call: Callable[[], None]) -> asyncio.Handle:
        """Call in the loop's thread; from any thread. Raises RuntimeError if the loop is closed."""
        ...

    def listen(self, sock: socket.socket, call: Callable[[], None] | None) -> None:
        """Call whenever there is something to read; None: not any more."""
        ...

    def watch(self, attempt: Attempt) -> None:
        """See its workers end from now on."""
        ...

    def attempt_began(self, attempt: Attempt) -> None:
        """An attempt was just started."""
        ...

    def attempt_is_ending(self) -> None:
        """Its end is about to be reported."""
        ...

    def attempt_ended(self) -> None:
        """No workers run here any more."""
        ...

    def usage(self) -> tuple[float, ...]:
        """Return what this node did since the last call."""
        ...
