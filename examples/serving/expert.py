"""The role that holds experts: takes rows from attention members, gives back what its experts make of them. It keeps nothing."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress

from decoder import EXPERTS, ExpertPart
from router import held
from wire import NONCE_BYTES, PURPOSE, Frames, WireError
from words import Greeting, Made, Work, bytes_of, rows_of

from robust_run import roles

GREETING_S = 10.0
READ_BYTES = 1 << 18
EVERYWHERE = "0.0.0.0"


class Server:
    """One expert member. `me`: its name; `key`: what all workers of the job share."""

    def __init__(self, me: str, key: bytes, part: ExpertPart) -> None:
        self._me, self._key, self._part = me, key, part

    async def listen(self, host: str) -> tuple[asyncio.Server, int]:
        """Listen at a free port, at an address or at all of this machine (empty), and return the port."""
        server = await asyncio.start_server(self._serve, host or EVERYWHERE, 0)
        return server, server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            frames, messages = await asyncio.wait_for(self._greet(reader, writer), GREETING_S)
            while True:
                for message in messages:
                    writer.write(frames.frame(self._work(message)))
                await writer.drain()
                data = await reader.read(READ_BYTES)
                if not data:
                    return
                messages = list(frames.feed(data))
        except (WireError, asyncio.TimeoutError) as error:
            print(f"{self._me}: somebody is sent away: {error or 'no word in time'}", flush=True)
        except (OSError, EOFError):
            pass  # it hung up
        finally:
            writer.transport.abort()  # closing would wait for one that does not read
            with suppress(OSError):
                await writer.wait_closed()

    async def _greet(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Frames, list[Greeting | Work | Made]]:
        """Find out that who connects belongs to the job: until then nothing is said but a nonce."""
        nonce = os.urandom(NONCE_BYTES)
        writer.write(nonce)
        frames = Frames(self._key, await reader.readexactly(NONCE_BYTES) + nonce, is_expert=True)
        messages: list[Greeting | Work | Made] = []
        while not messages:
            data = await reader.read(READ_BYTES)
            if not data:
                raise EOFError
            messages += frames.feed(data)
        writer.write(frames.frame(Greeting(self._me)))
        return frames, messages[1:]

    def _work(self, message: Greeting | Work | Made) -> Made:
        if not isinstance(message, Work):
            raise WireError(f"an attention member sent a {type(message).__name__}")
        try:
            made = {
                expert: bytes_of(self._part.compute(message.layer, expert, rows_of(data)))
                for expert, data in message.rows.items()
            }
        except KeyError as error:
            raise WireError(
                f"expert {error} (layer, number) is not held here; roles were given other --copies"
            ) from None
        except ValueError as error:
            raise WireError(f"these are no rows: {error}") from None
        return Made(message.ticket, made)


async def main(copies: int, host: str) -> None:
    """Serve until the job is over: it ends this process. `host`: where to listen; empty: everywhere."""
    me = roles.me()
    experts = held(me.index, EXPERTS, len(roles.members(me.role)), copies)
    server, port = await Server(me.member, roles.peer_key(PURPOSE), ExpertPart(experts)).listen(host)
    roles.ready(f"{host or socket.gethostname()}:{port}")
    print(f"{me.member} (pid {os.getpid()}) holds experts {', '.join(map(str, experts))} of each layer", flush=True)
    await server.serve_forever()
