"""The process that fetches a checkpoint ahead: one for each node and start, a child of its agent, of low priority.

    python -m robust_run.ckpt_io.ahead.process CONTROL MEMORY [LISTENING]

Descriptors: of a socketpair to the agent, of memory that `area.make` made, of a socket that other nodes reach. It ends when the
agent's end closes, and dies with the agent; the memory is then gone as soon as no reader has it open.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import NoReturn

import msgspec

from robust_run.ckpt_io.ahead import rules
from robust_run.ckpt_io.ahead.words import FetchNews, FetchOrder, FetchPace
from robust_run.errors import RobustRunError
from robust_run.health.sensors.process import die_with_parent
from robust_run.own_process import boot

_BOOT = boot("robust_run.ckpt_io.ahead.process", "main(*map(int, sys.argv[1:]))")
#: Workers' imports go first, and the agent, whose silence would cost the attempt.
_NICE = 10
_TELL_S = 1.0
_MOST_THREADS, _LEAST_THREADS = 16, 4
_LINE_BYTES = 1 << 20
#: What was begun before anybody knew who reads it is let go after so long: a node that stands by may never be told.
_UNTOLD_S = 600.0


def command(control: int, memory: int, listening: int | None) -> tuple[str, ...]:
    """Return what starts the process. No file of the folder it is started in can take the place of a module."""
    descriptors = (control, memory) if listening is None else (control, memory, listening)
    return (sys.executable, "-c", _BOOT, *map(str, descriptors))


def main(control: int, memory: int, listening: int = -1) -> None:
    """Fetch, and hold what was fetched until the agent hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):  # the agent ends us
        signal.signal(number, signal.SIG_IGN)
    if not die_with_parent(os.getppid()):
        return
    _let_others_go_first()
    agent = socket.socket(fileno=control)
    lines = agent.makefile("rb")
    order = msgspec.json.decode(lines.readline(_LINE_BYTES), type=FetchOrder)
    fetching = _Fetching(agent, order)
    threading.Thread(target=fetching.run, args=(memory, listening), daemon=True).start()
    while line := lines.readline(_LINE_BYTES):
        try:
            fetching.is_told(msgspec.json.decode(line, type=FetchOrder))
        except msgspec.ValidationError:
            fetching.go_at(msgspec.json.decode(line, type=FetchPace).rate_bytes_s)
    os._exit(0)


def _let_others_go_first() -> None:
    """Have a low priority, also where the kernel shares time out by session: then a nice value counts within one only."""
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as group:
        group.write(str(_NICE))


def _most_threads() -> int:
    return min(_MOST_THREADS, max(_LEAST_THREADS, len(os.sched_getaffinity(0))))


def _newest(order: FetchOrder) -> FetchOrder | None:
    """Return the order for the newest whole checkpoint of a folder; None: there is none."""
    from robust_run.ckpt_io.newest_far import look_far
    from robust_run.store import paths

    look = look_far(order.url)
    newest = next((each for each in look.seen if each.fault == "" and each.uuid), None)
    if newest is None:
        return None
    return msgspec.structs.replace(order, url=paths.child(order.url, newest.name), uuid=newest.uuid)


class _Fetching:
    """All that is done for one order."""

    def __init__(self, agent: socket.socket, order: FetchOrder) -> None:
        self._agent, self._order = agent, order
        self._pace = rules.Pace(order.rate_bytes_s)
        self._news = FetchNews(began_s=time.monotonic())
        self._deciding = threading.Lock()
        self._told: FetchOrder | None = None
        self._is_told = threading.Event()
        self._uuid = "" if order.is_folder else order.uuid
        """Of what it was decided to fetch."""

    def is_told(self, order: FetchOrder) -> None:
        """The attempt starts from this. If it was decided otherwise, all of this was in vain: readers use the store."""
        with self._deciding:
            if self._uuid not in ("", order.uuid):
                os._exit(0)
            self._told = msgspec.structs.replace(order, limit_bytes=self._order.limit_bytes)
            self._is_told.set()

    def _decided(self, newest: FetchOrder | None) -> FetchOrder:
        """Return what is fetched: what was told meanwhile, else the newest. Where there is neither the process ends: the job
        begins anew, or its attempt says what is wrong.
        """
        with self._deciding:
            if self._told is not None:
                newest = self._told
            if newest is None:
                os._exit(0)
            self._uuid = newest.uuid
            return newest

    def go_at(self, rate_bytes_s: float | None) -> None:
        """Go on at another pace; what people limited stays the limit."""
        limits = [each for each in (rate_bytes_s, self._order.rate_bytes_s) if each]
        self._pace.rate_bytes_s = min(limits, default=None)

    def run(self, memory: int, listening: int) -> None:
        """Fetch; tell how it goes; watch the node's memory afterwards. On any fault the process ends: readers use the store."""
        try:
            self._fetch(memory, listening)
        except RobustRunError as error:
            self._tell(is_over=True, trouble=str(error))
            os._exit(0)
        except BaseException as error:
            self._tell(is_over=True, trouble=f"{type(error).__name__}: {error}")
            os._exit(1)

    def _fetch(self, memory: int, listening: int) -> None:
        from robust_run.ckpt_io.ahead.opened import OpenedCheckpoint

        order = self._order if not self._order.is_folder else self._decided(_newest(self._order))
        if not order.is_assumed:
            self._hand_out(memory)
        opened = OpenedCheckpoint(order, memory, listening)
        self._tell(uuid=opened.manifest.uuid)
        with closing(opened.targets) as targets:
            fetcher, plan = opened.fetcher(order, self._pace)
            self._news = msgspec.structs.replace(
                self._news, total_bytes=opened.table.total_bytes, planned_bytes=plan.planned_bytes
            )
            asks_others = order.is_assumed or len(order.peers) > 1
            threads = min(_most_threads(), targets.threads) * (2 if asks_others else 1)
            self._take_turns(fetcher, threads)

            def go_on(told: FetchOrder) -> None:
                plan = opened.go_on(told, fetcher)
                self._news = msgspec.structs.replace(self._news, planned_bytes=plan.planned_bytes)
                self._hand_out(memory)

            if order.is_assumed:
                threading.Thread(target=self._wait_to_be_told, args=(go_on,), daemon=True).start()
            self._run(fetcher, opened.area, threads)

    def _hand_out(self, memory: int) -> None:
        from robust_run.ckpt_io.ahead.area import hand_out

        if self._order.hands_out >= 0:
            hand_out(socket.socket(fileno=self._order.hands_out), memory)

    def _wait_to_be_told(self, go_on: Callable[[FetchOrder], None]) -> None:
        """Go on with what an attempt needs as soon as that is known."""
        if not self._is_told.wait(_UNTOLD_S) or self._told is None:
            os._exit(0)
        try:
            go_on(self._told)
        except BaseException as error:
            self._tell(is_over=True, trouble=f"{type(error).__name__}: {error}")
            os._exit(1)

    def _run(self, fetcher: Fetcher, area: Area, threads: int) -> NoReturn:
        work = threading.Thread(target=fetcher.run, args=(threads,), daemon=True)
        work.start()
        while work.is_alive():
            work.join(_TELL_S)
            self._watch(fetcher, area)
            self._tell_of(fetcher, is_over=fetcher.is_over)
        self._tell_of(fetcher, is_over=True)
        while True:  # it holds what came until the agent hangs up
            time.sleep(_TELL_S)
            self._watch(fetcher, area)

    def _take_turns(self, fetcher: Fetcher, threads: int) -> None:
        """Let go first what is needed sooner."""
        from robust_run.store import turn_table
        from robust_run.store.rules.turns import Urgency

        def look(table: turn_table.TurnTable) -> bool:
            table.say(
                turn_table.CHECKPOINT,
                Urgency.CHECKPOINT,
                fetcher.have_bytes,
                self._news.planned_bytes,
                is_waited_for=fetcher.is_waited_for,
                is_over=self._news.is_over or fetcher.is_idle,
            )
            fetcher.most = table.allowed(turn_table.CHECKPOINT, threads)
            return not self._news.is_over

        turn_table.take_turns(look)

    def _watch(self, fetcher: Fetcher, area: Area) -> None:
        """Give everything back where the node runs out of memory: workers need it more."""
        from robust_run.ckpt_io.memory import budget, node_memory

        facts = node_memory.read()
        rooms = [
            (each.limit_bytes - each.used_bytes + each.reclaimable_bytes, each.limit_bytes) for each in facts.groups
        ]
        if facts.available_bytes is not None:
            rooms.append((facts.available_bytes, facts.total_bytes or 0))
        if not rules.is_short(rooms, budget.MARGIN_SHARE, budget.LEAST_MARGIN_BYTES):
            return
        fetcher.stop.set()
        self._tell(is_over=True, trouble="the node has little memory left: what was fetched is given back")
        area.drop()  # also where readers have it open
        os._exit(0)

    def _tell_of(self, fetcher: Fetcher, *, is_over: bool) -> None:
        self._tell(
            planned_bytes=max(self._news.planned_bytes, fetcher.have_bytes),
            have_bytes=fetcher.have_bytes,
            from_peers_bytes=fetcher.from_peers_bytes,
            is_waited_for=fetcher.is_waited_for,
            is_over=is_over,
            trouble=fetcher.trouble,
        )

    def _tell(self, **said: object) -> None:
        news = msgspec.structs.replace(self._news, **said)
        if news == self._news:
            return
        if news.have_bytes > self._news.have_bytes:
            news = msgspec.structs.replace(news, at_s=time.monotonic())
        self._news = news
        with contextlib.suppress(OSError):
            self._agent.sendall(msgspec.json.encode(news) + b"\n")


TYPE_CHECKING = False
if TYPE_CHECKING:
    from robust_run.ckpt_io.ahead.area import Area
    from robust_run.ckpt_io.ahead.fetching import Fetcher

if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
