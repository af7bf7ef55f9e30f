"""The API's routes about checks. Imports aiohttp, as `routes` does.

POST /v1/checks                                 begin: check_words.CheckWish
GET  /v1/checks/{number}?after=N&wait=SECONDS   how they go: check_words.CheckView
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from robust_run.decoders import json_decoder
from robust_run.health.checks.plan import Wish
from robust_run.health.checks.show import ChecksReport
from robust_run.health.checks.types import CheckJudgement
from robust_run.launcher.controller.handle_types import ControllerHandle
from robust_run.launcher.operator.server.wishes import body_of, json_of
from robust_run.launcher.operator.views.check_operations import choose
from robust_run.launcher.operator.views.check_words import CheckBegun, CheckView, CheckWish
from robust_run.launcher.operator.views.operations import OperationRefusedError

if TYPE_CHECKING:
    from robust_run.launcher.controller.checks.session import CheckSession

#: Sessions that are remembered.
MOST_KEPT = 8
BODY_S = 30.0
LARGEST_WISH_BYTES = 8 << 20
LONGEST_WAIT_S, LOOK_EVERY_S = 30.0, 0.1


class CheckRoutes:
    """Over one controller."""

    def __init__(self, controller: ControllerHandle) -> None:
        self._controller = controller
        self._kept: OrderedDict[int, CheckSession] = OrderedDict()
        self._number = 0

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_post("/v1/checks", self._begin)
        app.router.add_get("/v1/checks/{number}", self._view, allow_head=False)

    async def _begin(self, request: web.Request) -> web.Response:
        wish = await _wish(request)
        checking = self._controller.checking()
        busy = {node for drive in checking.drives for node in drive.agents.values()}
        chosen, names, left_out = choose(self._controller.state(), wish.nodes, busy)
        drive = checking.ask(
            chosen,
            Wish(only=wish.only, seconds=wish.seconds, passes=wish.passes, limit_s=wish.limit_s, folder=wish.folder),
        )
        self._number += 1
        self._kept[self._number] = drive
        while len(self._kept) > MOST_KEPT:
            checking.give_up(self._kept.popitem(last=False)[1], "too many others were asked for since")
        begun = CheckBegun(number=self._number, nodes=names, left_out=left_out)
        return web.Response(body=msgspec.json.encode(begun), content_type="application/json")

    async def _view(self, request: web.Request) -> web.Response:
        try:
            drive = self._kept[int(request.match_info["number"])]
            after = max(int(request.query.get("after", "0")), 0)
            wait_s = min(max(float(request.query.get("wait", "0")), 0.0), LONGEST_WAIT_S)
        except (KeyError, ValueError):
            raise OperationRefusedError(404, "there are no checks of this number (any more)") from None
        for _ in range(int(wait_s / LOOK_EVERY_S)):
            if drive.is_over or len(drive.lines) > after:
                break
            with suppress(asyncio.TimeoutError):
                await asyncio.sleep(LOOK_EVERY_S)
        lines = tuple(drive.lines[after:])
        view = CheckView(
            lines=lines,
            next=after + len(lines),
            is_over=drive.is_over,
            given_up=drive.given_up,
            report=_report(drive),
        )
        return json_of(view)


def _report(drive: CheckSession) -> ChecksReport | None:
    if not drive.is_over or drive.session is None:
        return None
    judged = drive.judgement or CheckJudgement(unchecked=(f"given up: {drive.given_up}",))
    return ChecksReport(nodes=drive.session.facts, results=tuple(drive.session.results), judgement=judged)


async def _wish(request: web.Request) -> CheckWish:
    data = await body_of(request, "application/json", "this", LARGEST_WISH_BYTES, BODY_S)
    try:
        return json_decoder(CheckWish).decode(data or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OperationRefusedError(400, f"the body is not a request for checks: {error}") from None
