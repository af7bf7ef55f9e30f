"""The API's routes about versions of the code. Imports aiohttp, as `routes` does.

    GET  /v1/code                      all versions, and what an update must know of the job
    GET  /v1/code/parts/{tree}         one version's code: a msgpack list of `TreeParts`
    POST /v1/code/parts                some of the code of an update to come: msgpack `TreeParts`
    POST /v1/code/update               stage it: code_words.UpdateWish
    POST /v1/code/refused              put on record that it was not staged: code_words.RefusedWish
    POST /v1/code/rollback             code_words.RollbackWish

What is sent in pieces is kept only where its digest is one that the tree names; nothing runs that was not staged.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from aiohttp import web

from robust_run.clock import Clock
from robust_run.decoders import msgpack_decoder
from robust_run.errors import RobustRunError
from robust_run.launcher.control.code_transfer import Receiver, parts_of
from robust_run.launcher.controller.code.staging import store_folder
from robust_run.launcher.controller.handle_types import ControllerHandle
from robust_run.launcher.operator.server.wishes import Wish, body_of, json_of, wish_of
from robust_run.launcher.operator.views import code_operations
from robust_run.launcher.operator.views.code_words import (
    LARGEST_PARTS_BYTES,
    CodeView,
    RefusedWish,
    RollbackWish,
    UpdateWish,
)
from robust_run.launcher.operator.views.operations import Granted, OperationRefusedError
from robust_run.launcher.records.code.names import is_digest
from robust_run.launcher.records.code.tree_store import TreeStore
from robust_run.launcher.records.code.types import TreeParts

#: Updates that may be on their way at the same time.
MOST_UNDER_WAY = 8
BODY_S = 30.0
LARGEST_WISH_BYTES = 1 << 20


class CodeRoutes:
    """Over one controller."""

    def __init__(self, controller: ControllerHandle, clock: Clock) -> None:
        self._controller = controller
        self._clock = clock
        self._store = TreeStore(store_folder(controller.journal_path))
        self._under_way: OrderedDict[str, Receiver] = OrderedDict()

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        app.router.add_get("/v1/code", self._view, allow_head=False)
        app.router.add_get("/v1/code/parts/{tree}", self._give, allow_head=False)
        app.router.add_post("/v1/code/parts", self._take)
        app.router.add_post("/v1/code/update", self._update)
        app.router.add_post("/v1/code/refused", self._refused)
        app.router.add_post("/v1/code/rollback", self._rollback)

    async def _view(self, _: web.Request) -> web.Response:
        facts = self._controller.facts
        view = CodeView(
            code=self._controller.state().code,
            mode=facts.code,
            argv=facts.argv,
            is_python=facts.is_python,
            cwd=facts.cwd,
            host=facts.host,
        )
        return json_of(view)

    async def _give(self, request: web.Request) -> web.Response:
        tree = request.match_info["tree"]
        if not is_digest(tree):
            raise OperationRefusedError(404, f"{tree[:80]!r} is no version's code")
        parts = list(parts_of(self._store, tree))
        return web.Response(body=msgspec.msgpack.encode(parts), content_type="application/msgpack")

    async def _take(self, request: web.Request) -> web.Response:
        data = await body_of(request, "application/msgpack", "this", LARGEST_PARTS_BYTES, BODY_S)
        try:
            parts = msgpack_decoder(TreeParts).decode(data)
            if not is_digest(parts.tree):
                raise OperationRefusedError(400, f"{parts.tree[:80]!r} is no version's code")
            receiver = self._under_way.setdefault(parts.tree, Receiver(self._store, parts.tree))
            self._under_way.move_to_end(parts.tree)
            while len(self._under_way) > MOST_UNDER_WAY:
                self._under_way.popitem(last=False)
            if receiver.take(parts):
                self._under_way.pop(parts.tree, None)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise OperationRefusedError(400, f"the body is not a part of a version: {error}") from None
        except RobustRunError as error:
            raise OperationRefusedError(409, str(error)) from None
        return json_of(code_operations.refused(RefusedWish(reason="")).answer)

    async def _update(self, request: web.Request) -> web.Response:
        wish = await _wish(request, UpdateWish)
        tree = wish.version.tree
        has_code = not tree or self._store.has(tree)
        state, now_unix_s = self._controller.state(), self._clock.unix_s()
        return self._do(code_operations.update(state, wish, now_unix_s, has_code=has_code))

    async def _refused(self, request: web.Request) -> web.Response:
        return self._do(code_operations.refused(await _wish(request, RefusedWish)))

    async def _rollback(self, request: web.Request) -> web.Response:
        wish = await _wish(request, RollbackWish)
        return self._do(code_operations.rollback(self._controller.state(), wish))

    def _do(self, granted: Granted) -> web.Response:
        if granted.event is not None:
            self._controller.tell(granted.event)
        return json_of(granted.answer)


async def _wish(request: web.Request, kind: type[Wish]) -> Wish:
    return await wish_of(request, kind, "this", LARGEST_WISH_BYTES, BODY_S)
