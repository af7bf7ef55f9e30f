"""Bodies of requests, and answers as JSON. Imports aiohttp, as `routes` does."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec
from aiohttp import web

from robust_run.decoders import json_decoder
from robust_run.launcher.operator.views.operations import OperationRefusedError

Wish = TypeVar("Wish", bound=msgspec.Struct)


async def wish_of(request: web.Request, kind: type[Wish], what: str, most_bytes: int, limit_s: float) -> Wish:
    """Return what is wished for; no body is all defaults. Raises OperationRefusedError."""
    data = await body_of(request, "application/json", what, most_bytes, limit_s)
    try:
        return json_decoder(kind).decode(data or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OperationRefusedError(400, f"the body is not a request for this action: {error}") from None


async def body_of(request: web.Request, content_type: str, what: str, most_bytes: int, limit_s: float) -> bytes:
    """Return a body, which may be larger than the server's limit. `what`: how it is called. Raises OperationRefusedError."""
    if request.content_type != content_type:
        raise OperationRefusedError(415, f"send {what} as {content_type}")
    try:
        return await asyncio.wait_for(_read(request, most_bytes), limit_s)
    except asyncio.TimeoutError:
        raise OperationRefusedError(408, f"the body did not arrive within {limit_s:g} s") from None


async def _read(request: web.Request, most_bytes: int) -> bytes:
    data = bytearray()
    async for chunk in request.content.iter_any():
        data += chunk
        if len(data) > most_bytes:
            raise OperationRefusedError(413, f"the body is larger than {most_bytes} bytes")
    return bytes(data)


def json_of(view: msgspec.Struct) -> web.Response:
    """Return an answer."""
    return web.Response(body=msgspec.json.encode(view), content_type="application/json")
