"""What an agent reports reaches the controller, whatever happens to the connection meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from controllers import Port, Recorder, hello_of, run, serving, until

from robust_run.clock import SystemClock
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.messages import EventReport, Hello, JoinRefused, Orders, Welcome
from robust_run.launcher.control.peer import Peer
from robust_run.launcher.model.actions import StartAttempt
from robust_run.launcher.model.events import AttemptEnded, NodeEvent
from robust_run.launcher.model.job import ManyNodes, Progress
from robust_run.launcher.start.many.fence import Cell, Lease
from robust_run.launcher.start.many.link import RemoteLink

ENDED = AttemptEnded(attempt=3, node="id-n0", started_at_s=0.0, ranks=(), progress=Progress())


class Hands:
    """As much of an agent as a link needs."""

    exit_code = None
    newest_attempt = 3
    is_running = False

    def __init__(self) -> None:
        self.history: list[NodeEvent] = []

    def usage(self) -> tuple[float, ...]:
        """Nothing watches this node."""
        return ()

    def forget_asked(self) -> None:
        """Nothing of the code was asked for."""


class Patient(Recorder):
    """Gives agents a lease that no busy machine lets run out."""

    def joined(self, peer: Peer, hello: Hello) -> Welcome | JoinRefused:
        answer = super().joined(peer, hello)
        return msgspec.structs.replace(answer, lease_s=60.0) if isinstance(answer, Welcome) else answer


def link_to(
    port: Port, hands: Hands, lease: Lease, between: Callable[[], None] = lambda: None, controller_standby: int = 0
) -> RemoteLink:
    """Return a link whose second try to connect is overtaken: `between` is called once its Hello has been written."""
    dialed: list[str] = []

    async def dial(where: str, hello: Hello) -> Connection:
        if where not in ("", f"127.0.0.1:{port.number}"):
            raise OSError("there is no candidate")
        dialed.append(where)
        if len(dialed) == 2:
            between()
        return await port.dial(hello)

    async def nobody() -> str:
        return ""

    agent: Any = hands
    return RemoteLink(
        agent=agent,
        spec=None,  # type: ignore[arg-type]
        many=ManyNodes(fewest=1, most=1, host="127.0.0.1", port=port.number, controller_standby=controller_standby),
        hello=hello_of("n0"),
        dial=dial,
        lease=lease,
        clock=SystemClock(),
        say=lambda _: None,
        on_candidates=lambda _: None,
        own_controller=lambda: "",
        ask=nobody,
    )


def reported(recorder: Recorder) -> list[NodeEvent]:
    return [event for _, message in recorder.messages if isinstance(message, EventReport) for event in message.events]


def test_what_happens_while_an_agent_is_greeted_again_is_not_lost() -> None:
    # Its Hello has been written without it, and the connection that could carry it is not there yet.
    async def main() -> None:
        async with serving(Patient()) as port:
            hands, lease, recorder = Hands(), Lease(Cell()), port.server.handler
            assert isinstance(recorder, Recorder)

            def end() -> None:
                hands.history.append(ENDED)
                link.report(ENDED)

            link = link_to(port, hands, lease, end)
            link.attach(asyncio.get_running_loop())
            await until(lambda: lease.renewed_s is not None)  # a heartbeat was answered
            recorder.peers[0].drop("the test cuts it")
            await until(lambda: len(recorder.peers) == 2)
            assert recorder.hellos[1].events == ()
            await until(lambda: reported(recorder) == [ENDED])
            await link.close()

    run(main())


def test_an_agent_does_not_dial_one_controller_twice_at_once() -> None:
    # It knows it by where the nodes meet and by the address it had: the second connection would end the first.
    async def main() -> None:
        async with serving(Patient()) as port:
            lease, recorder = Lease(Cell()), port.server.handler
            assert isinstance(recorder, Recorder)
            link = link_to(port, Hands(), lease, controller_standby=1)
            link.attach(asyncio.get_running_loop())
            await until(lambda: lease.renewed_s is not None)
            for number in (1, 2):
                before_s = lease.renewed_s
                recorder.peers[-1].drop("the test cuts it")
                await until(lambda number=number: len(recorder.hellos) > number)  # type: ignore[misc]
                await until(lambda before_s=before_s: lease.renewed_s != before_s)  # type: ignore[misc]
                assert len(recorder.hellos) == 1 + number
            await link.close()

    run(main())


class Slow(Hands):
    """Starting workers takes its time: meanwhile nothing else is done."""

    def __init__(self) -> None:
        super().__init__()
        self.began_s = self.ended_s = 0.0

    def obey(self, _order: object) -> None:
        self.began_s = time.monotonic()
        time.sleep(0.2)
        self.ended_s = time.monotonic()


class Noted(Lease):
    """Keeps when heartbeats were sent."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(cell)
        self.sent_s: list[float] = []

    def sent(self, number: int, now_s: float) -> None:
        super().sent(number, now_s)
        self.sent_s.append(now_s)


def test_a_lease_counts_from_just_before_and_just_after_workers_were_started() -> None:
    async def main() -> None:
        async with serving(Patient()) as port:
            hands, lease, recorder = Slow(), Noted(Cell()), port.server.handler
            assert isinstance(recorder, Recorder)
            link = link_to(port, hands, lease)
            link.attach(asyncio.get_running_loop())
            await until(lambda: lease.renewed_s is not None)
            order = StartAttempt(attempt=4, address="a", port=1, placements=(), world_size=1, nodes=1)
            recorder.peers[0].send(Orders(term=7, orders=(order,)))
            sent = len(lease.sent_s)
            await until(lambda: hands.ended_s > 0)
            assert len(lease.sent_s) >= sent + 2
            before, after = lease.sent_s[-2:]
            assert before <= hands.began_s < hands.ended_s <= after
            await until(lambda: lease.renewed_s == after)
            await link.close()

    run(main())
