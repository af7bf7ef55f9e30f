"""Asks NCCL's RAS what it knows: one question over a plain TCP socket, with limits on time and size. Never raises.

Any process of the node may answer, and it may be the one that is stopped: then another connection finds another process. The
question makes NCCL ask all processes of the job over its own network, so it is put only where there is a suspicion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from robust_run.tracer.ras.parse import parse
from robust_run.tracer.ras.types import RasReport
from robust_run.tracer.types import RankSight

#: All together.
LIMIT_S = 3.5
#: For a process to say that it is there; and processes that are tried.
GREETING_S = 0.4
TRIES = 4
#: For NCCL's processes to answer each other, whole seconds.
GATHERING_S = 1
ANSWER_BYTES = 8 << 20
LINE_BYTES = 4096

_GREETING = f"CLIENT PROTOCOL 2\nTIMEOUT {GATHERING_S}\nSET FORMAT json\n".encode()
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def ask(address: str, limit_s: float = LIMIT_S) -> RasReport | None:
    """Return what RAS at `address` (HOST:PORT) says of the job; None if no process there says anything that makes sense."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return None
    try:
        return await asyncio.wait_for(_ask(host, int(port)), limit_s)
    except (OSError, ValueError, OverflowError, EOFError, asyncio.TimeoutError):
        return None


async def _ask(host: str, port: int) -> RasReport | None:
    """Ask the first process that greets. Raises OSError, ValueError, EOFError."""
    for _ in range(TRIES):
        try:
            (reader, writer), speaks_json = await asyncio.wait_for(_greet(host, port), GREETING_S)
        except asyncio.TimeoutError:
            continue
        try:
            writer.write(b"STATUS\n" if speaks_json else b"VERBOSE STATUS\n")
            await writer.drain()
            return await asyncio.to_thread(parse, await _all(reader))  # megabytes of text take a second
        finally:
            writer.close()
    return None


async def _greet(host: str, port: int) -> tuple[_Connection, bool]:
    """Return a connection on which a process answers, and whether it speaks JSON. Raises OSError, ValueError, EOFError."""
    reader, writer = await asyncio.open_connection(host, port, limit=LINE_BYTES)
    try:
        writer.write(_GREETING)
        await writer.drain()
        protocol, timeout, form = [await reader.readuntil(b"\n") for _ in range(3)]
        if not protocol.startswith(b"SERVER PROTOCOL ") or timeout.strip() != b"OK":
            raise ValueError(f"no RAS of NCCL listens there: it says {protocol[:80]!r}")
    except asyncio.LimitOverrunError as error:
        writer.close()
        raise ValueError("a line without an end") from error
    except BaseException:
        writer.close()
        raise
    return (reader, writer), form.strip() == b"OK"


async def _all(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the other end closes. Raises ValueError for more than `ANSWER_BYTES`."""
    content = bytearray()
    while piece := await reader.read(1 << 16):
        content += piece
        if len(content) > ANSWER_BYTES:
            raise ValueError(f"an answer of more than {ANSWER_BYTES} bytes")
    return bytes(content)


#: Nodes with one of these ranks ask. Two, for with one rank a node it may be the very rank that does not answer.
ASKING_RANKS = frozenset({0, 1})
#: Who looks once only wants stacks; a suspicion looks several times.
SUSPICION_SAMPLES = 2


def is_ours_to_ask(address: str, ranks: Collection[int], samples: int) -> bool:
    """Whether a node with these ranks asks when it is told to look so many times. `address` empty: RAS has none of ours."""
    return bool(address) and samples >= SUSPICION_SAMPLES and not ASKING_RANKS.isdisjoint(ranks)


async def heard(address: str, ranks: Collection[int], samples: int) -> RasReport | None:
    """Return what RAS says, None where this node does not ask or none answers. Takes `client.LIMIT_S` at most; never raises."""
    return await ask(address) if is_ours_to_ask(address, ranks, samples) else None


def with_report(sights: tuple[RankSight, ...], report: RasReport | None) -> tuple[RankSight, ...]:
    """Return the sights of a node with what RAS said, on the first of them."""
    if report is None or not sights:
        return sights
    return (msgspec.structs.replace(sights[0], ras=report), *sights[1:])
