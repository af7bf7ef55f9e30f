"""Somebody between an agent and its controller, without TLS, after both have proven themselves: nothing of it is obeyed."""

from __future__ import annotations

import pytest
from controllers import TOKEN, hello_of, run, serving, until
from relay import Relay

from robust_run.launcher.control import frames
from robust_run.launcher.control.client import Connection, dial
from robust_run.launcher.control.messages import (
    ControlNotice,
    FromController,
    Heartbeat,
    HeartbeatReply,
    JoinRefused,
    Leaving,
    Orders,
)
from robust_run.launcher.model.actions import EndAttempt, Finish

END = frames.encode(Orders(term=7, orders=(EndAttempt(attempt=0, signal=9, grace_s=0.0),)))
GUESS = b"g" * 16


async def through(relay: Relay) -> Connection:
    return await dial("127.0.0.1", relay.port, TOKEN, hello_of("n0"), timeout_s=50.0)


@pytest.mark.parametrize(
    "forged",
    [
        END,
        END + GUESS,
        frames.encode(Orders(term=7, orders=(Finish(exit_code=1, outcome="failed", reason="x"),))) + GUESS,
        frames.encode(JoinRefused(reason="go")) + GUESS,
        b"\xff\xff\xff\xff",
        b"\x00",
    ],
    ids="bare-order order finish refusal length byte".split(),
)
def test_an_order_that_somebody_in_between_puts_in_ends_the_connection_and_nothing_else(forged: bytes) -> None:
    async def main() -> None:
        async with serving() as port:
            with Relay(port.number) as relay:
                connection = await through(relay)
                heard: list[FromController] = []
                ends: list[str] = []
                connection.listen(heard.append, ends.append)
                connection.send(Heartbeat(number=1))
                await until(lambda: heard)
                relay.add(to_agent=forged)
                number = 1
                while not ends:  # what is put in may be the beginning of a frame that has yet to end
                    number += 1
                    connection.send(Heartbeat(number=number))
                    seen = len(port.server.peers)
                    await until(lambda: ends or len(heard) >= number or not seen)  # noqa: B023
                assert relay.added == 1
                assert all(isinstance(each, HeartbeatReply) for each in heard)
                assert ends[0].startswith("127.0.0.1:")
                assert "sent what is no message of robust-run" in ends[0]
                again = await through(relay)  # as an agent does that lost its connection
                assert len(port.handler.hellos) == 2
                again.close()

    run(main())


@pytest.mark.parametrize("forged", [Leaving(reason="bye"), ControlNotice(text="look here")])
def test_nothing_is_said_for_an_agent_by_somebody_in_between(forged: Leaving | ControlNotice) -> None:
    async def main() -> None:
        async with serving() as port:
            with Relay(port.number) as relay:
                connection = await through(relay)
                connection.send(ControlNotice(text="mine"))
                await until(lambda: port.handler.messages)
                relay.add(to_controller=frames.encode(forged) + GUESS)
                connection.send(ControlNotice(text="mine, too"))
                await until(lambda: port.handler.left)
                assert relay.added == 1
                assert [message for _, message in port.handler.messages] == [ControlNotice(text="mine")]
                ((_, why),) = port.handler.left
                assert why.startswith("garbage: frame 1 is not what the other end sent")
                assert "\n" not in why

    run(main())
