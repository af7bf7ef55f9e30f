"""The role that attends: takes requests from their queue, sends tokens to experts and back, puts answers into another queue."""

from __future__ import annotations

import asyncio
import threading

import msgspec
from engine import Engine, Sequence
from links import Experts
from router import Router
from wire import PURPOSE
from words import Answer, packed, request_of

from robust_run import roles
from robust_run.errors import RobustRunError

PATIENCE_S = 1.0
"""An expert member that has not answered after so long is late: another that holds the same is asked as well."""
RENEW_S = 5.0
"""How often this member says that it still works on its requests, however long experts are away."""
IDLE_S = 20.0


class Desk:
    """Requests in, answers out. A request is this member's until its answer is in the other queue."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._requests, self._answers = roles.queue("requests"), roles.queue("answers")

    async def take(self, most: int, may_wait: bool) -> list[Sequence]:
        """Take requests: at least one, where it may wait. Those that cannot be answered are told so."""
        found: list[Sequence] = []
        while True:
            for item in await asyncio.to_thread(self._requests.take, most, timeout_s=IDLE_S if may_wait else 0.0):
                sequence = await self._begun(item)
                found += [sequence] if sequence else []
            if found or not may_wait:
                return found

    async def _begun(self, item: roles.Item) -> Sequence | None:
        number = -1
        try:
            request = request_of(item.payload)
            number = request.number
            return Sequence(request, lambda answer: self._done(item, answer))
        except (msgspec.MsgspecError, ValueError) as error:
            await self._done(item, Answer(number, by=self._me, error=str(error)[:400]))
            return None

    async def _done(self, item: roles.Item, answer: Answer) -> None:
        """Another may have answered it meanwhile, with the same: the key of the request counts once."""
        await asyncio.to_thread(self._answers.put, packed(answer), key=item.key)
        await asyncio.to_thread(self._requests.done, item)

    async def renew(self) -> None:
        """Say again and again that this member works on what it has."""
        while True:
            await asyncio.sleep(RENEW_S)
            await asyncio.to_thread(self._requests.renew)


async def main(copies: int) -> None:
    """Answer requests until the job is over: it ends this process."""
    me, count = roles.me(), len(roles.members("expert"))
    experts = Experts(me.member, roles.peer_key(PURPOSE), Router(count, copies, PATIENCE_S), _say)
    desk = Desk(me.member)
    engine = Engine(me.member, experts, desk.take)
    loop = asyncio.get_running_loop()
    threading.Thread(target=_follow, args=(loop, experts), daemon=True).start()
    roles.ready()
    await asyncio.gather(engine.run(), experts.run(count), desk.renew(), _tell(engine))


def _follow(loop: asyncio.AbstractEventLoop, experts: Experts) -> None:
    """Hand on where expert members are, whenever one has changed; end where the job is gone."""
    try:
        for members in roles.changes("expert"):
            asyncio.run_coroutine_threadsafe(experts.know(members), loop)
    except RobustRunError as error:
        _say(str(error))


async def _tell(engine: Engine) -> None:
    """Say how often both micro-batches were on their way at once."""
    while True:
        seen = engine.steps
        await asyncio.sleep(RENEW_S)
        if engine.steps > seen:
            share = engine.overlapped / engine.steps
            _say(f"{engine.steps} times attention, at {share:.0%} of them experts had the other micro-batch")


def _say(line: str) -> None:
    print(line, flush=True)
