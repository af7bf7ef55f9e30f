"""Reconnection to the controller: where it was, where the nodes meet, and who may have taken over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.control.client import Connection
from robust_run.launcher.control.errors import JoinRefusal, NoController
from robust_run.launcher.control.messages import Hello
from robust_run.launcher.controller.leadership.leaders import ASK_AGAIN_S
from robust_run.launcher.model.job import ManyNodes
from robust_run.launcher.start.many.fence import Lease

#: Earlier controllers that are looked for again.
MOST_LEADERS = 3
#: How long a controller may be gone before it is spoken of: its agent starts it again in less.
ALONE_S = 3.0
#: And where candidates are to be elected: they have had their turns by then.
LEADERLESS_S = 10.0
#: Between two tries to reach the controller.
RETRY_S = 0.2
#: What a try may take where there are other places to try, and where there are none: a controller that thousands dial at once
#: greets them one after the other, and who gives up only makes it longer.
DIAL_S = 2.0
ONLY_DIAL_S = 10.0


class Dialer(Protocol):
    """Reaches the controller. Raises what `control.client.dial` raises."""

    async def __call__(self, where: str, hello: Hello) -> Connection:
        """Connect to HOST:PORT, or where the nodes meet if that is empty, and be let in."""
        ...


class Finder:
    """What one node knows of where its controller may be."""

    def __init__(  # noqa: PLR0913 - what it asks, and whom it tells
        self,
        *,
        many: ManyNodes,
        dial: Dialer,
        ask: Callable[[], Awaitable[str]],
        greeting: Callable[[float], Hello],
        lease: Lease,
        clock: Clock,
        say: Callable[[str], None],
        is_running: Callable[[], bool],
        is_done: Callable[[], bool],
    ) -> None:
        self.candidates: tuple[str, ...] = ()
        """HOST:PORT of those that would be the next controller."""
        self.run_path = "RUN_DIR"
        self._many = many
        self._dial = dial
        self._ask = ask
        self._greeting = greeting
        self._lease = lease
        self._clock = clock
        self._say = say
        self._is_running = is_running
        self._is_done = is_done
        self._led_by: list[str] = []
        """Candidates that have been the controller, the newest last: they may be it again."""
        self._meeting_at = ""
        """Where the nodes meet, as it turned out."""
        self._alone_since_s: float | None = None
        self._ask_at_s = 0.0
        self._said_alone = False
        self._said_refused = ""

    def met(self, where: str) -> None:
        """Note where the nodes meet."""
        self._meeting_at = where

    def found(self, where: str) -> None:
        """Note that the controller at HOST:PORT let this node in."""
        if self._many.controller_standby > 0:
            self._led_by = [each for each in self._led_by if each != where][-MOST_LEADERS:]
            self._led_by.append(where)
        self._alone_since_s = None
        self._ask_at_s = self._clock.monotonic_s() + self._lease.times.lease_s
        if self._said_alone:
            self._say("the controller is back")
            self._said_alone = False

    async def find(self) -> Connection:
        """Dial where the controller was, and its candidates, until one lets us in. Raises RobustRunError."""
        while True:
            now_s = self._clock.monotonic_s()
            self._alone_since_s = now_s if self._alone_since_s is None else self._alone_since_s
            found = await self._dial_all(now_s)
            if found is not None:
                return found
            if self._many.controller_standby > 0:
                self._say_leaderless(now_s)
            self._check_patience(now_s)
            await self._look_up(now_s)
            await asyncio.sleep(RETRY_S)

    async def _look_up(self, now_s: float) -> None:
        """Ask who leads, now and then, where it may be somebody this node has not heard of. Raises JobFinished."""
        if now_s < self._ask_at_s or (self._many.controller_standby == 0 and self._is_running()):
            return
        self._ask_at_s = now_s + ASK_AGAIN_S
        where = await self._ask()
        if where:
            self._led_by = [*(each for each in self._led_by if each != where), where][-MOST_LEADERS:]

    async def _dial_all(self, now_s: float) -> Connection | None:
        """Dial all places at once: a dead node does not answer, and the lease may end while it is waited for."""
        greeting = self._greeting(now_s)
        tries = [asyncio.ensure_future(self._dial_one(where, greeting)) for where in self._places()]
        found: Connection | None = None
        try:
            for each in asyncio.as_completed(tries):
                try:
                    found = await each
                    return found
                except ConnectionRefusedError:
                    if self._many.controller_standby == 0:
                        self._lease.renew(now_s)  # where nothing listens, no controller runs that could replace us
                        self._say_alone(now_s)
                except JoinRefusal as refusal:
                    if self._is_to_be_obeyed(refusal):
                        raise
                except (OSError, TimeoutError, PlatformError):
                    pass
            return None
        finally:
            for other in tries:
                other.cancel()
                other.add_done_callback(lambda done: _hang_up(done, found))

    def _is_to_be_obeyed(self, refusal: JoinRefusal) -> bool:
        """Whether this node is to go for it.

        A node that has been in the job goes only when who refuses knows the token: anybody between the two can send a
        refusal. Without that proof the workers have the rest of their lease, as when the cable is cut; after that, another
        job may really have the port.
        """
        if not refusal.final or refusal.is_proven or not self._is_running():
            return refusal.final
        if refusal.reason != self._said_refused:
            self._said_refused = refusal.reason
            self._say(f"not obeyed, because it came without a proof of the job's token: {refusal.reason}")
        return False

    async def _dial_one(self, where: str, greeting: Hello) -> Connection:
        connection = await self._dial(where, greeting)
        if not where:
            self._meeting_at = connection.where
        return connection

    def _places(self) -> list[str]:
        """Return where a controller may be, the likeliest first: where it was, where the nodes meet, who would be next."""
        if not self.candidates and not self._led_by:
            return [""]
        places = list(dict.fromkeys((*reversed(self._led_by), "", *self.candidates)))
        if self._meeting_at in places:
            places.remove("")  # who dials one controller twice at once is dropped by it once
        return places

    def _say_alone(self, now_s: float) -> None:
        is_for_long = self._alone_since_s is not None and now_s - self._alone_since_s > ALONE_S
        if is_for_long and not self._said_alone and not self._is_done():
            self._said_alone = True
            what = (
                "the workers go on" if self._is_running() else f"nothing runs here, this node waits {self._patience()}"
            )
            self._say(
                f"the controller is gone; {what}. robust-run --resume {self.run_path}, on its node, brings it back"
            )

    def _say_leaderless(self, now_s: float) -> None:
        """Say for whom this node waits, where another one may lead and none does."""
        alone_s = 0.0 if self._alone_since_s is None else now_s - self._alone_since_s
        if alone_s < LEADERLESS_S or self._said_alone or self._is_running() or self._is_done():
            return
        self._said_alone = True
        whom = f"one of {', '.join(self.candidates)}" if self.candidates else "any node that stands for election"
        self._say(
            f"nobody leads this job; nothing runs here, this node waits up to {self._patience_s:.0f} s for {whom}, "
            f"or the node that led. robust-run --resume {self.run_path}, on the first node, brings it back"
        )

    def _patience(self) -> str:
        """Return how long this node waits for a controller, once nothing runs here."""
        return f"up to {self._patience_s:.0f} s for it"

    @property
    def _patience_s(self) -> float:
        return self._many.join_timeout_s if self._many.alone_s is None else self._many.alone_s

    def _check_patience(self, now_s: float) -> None:
        """Give up when nothing runs here and no controller has been found for too long."""
        alone_s = now_s - (now_s if self._alone_since_s is None else self._alone_since_s)
        many = self._many
        if self._is_running() or alone_s < self._patience_s:
            return
        raise NoController(
            f"no controller at {many.host}:{many.port} for {alone_s:.0f} s; "
            "on its node, robust status says whether it lives; "
            f"if it is gone, robust-run --resume {self.run_path} continues the job"
        )


def _hang_up(done: asyncio.Future[Connection], kept: Connection | None) -> None:
    """Let go of a connection that came too late."""
    if not done.cancelled() and done.exception() is None and done.result() is not kept:
        done.result().abort()
