"""Interfaces between agent and controller: the agent's link, the controller's outbox, timers. No behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from robust_run.launcher.model.actions import Order
from robust_run.launcher.model.events import NodeEvent

if TYPE_CHECKING:
    import asyncio

    from robust_run.launcher.model.start_notes import Seen


class ControllerLink(Protocol):
    """Whom an agent reports to: the controller in the same process, or the connection to one."""

    @property
    def is_led_from_here(self) -> bool:
        """Whether the job's controller is on this node."""
        ...

    @property
    def term(self) -> int:
        """Of the controller that was obeyed last, as in its journal; 0: of none, or of a job whose controller cannot change."""
        ...

    def report(self, event: NodeEvent) -> None:
        """Pass on what happened here."""
        ...

    def deliver(self, seen: Seen) -> None:
        """Pass on what is seen of the ranks here, and what checks say."""
        ...

    def told_to_end(self, number: int, *, again: bool) -> None:
        """A signal ends the job, or this node's part in it."""
        ...

    def guard_lost(self) -> None:
        """The process the user started is gone."""
        ...

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop runs now."""
        ...

    def fetch_code(self, tree: str) -> bool:
        """Ask for a version of the code; False where there is no other node to ask."""
        ...

    async def close(self) -> None:
        """This node is done."""
        ...


class Outbox(Protocol):
    """The way to the agents. An order to a node that is not connected is dropped: it is told again when it returns."""

    def send(self, node: str, order: Order) -> None:
        """Pass an order on."""
        ...


class Timer(Protocol):
    """What `later` returns."""

    def cancel(self) -> None:
        """Do not call."""
        ...
