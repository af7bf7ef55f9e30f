"""Builds the wake chain: from a rank over the processes that each waits for, to what is waited for in the end. Pure.

The chain follows one waker as long as there is just one; where several may wake a thread it ends and names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.tracer.wake.types import ProcessReading, ThreadWait, WakeChain, WakeLink, WakeReading
from robust_run.tracer.wake.waits import NAMED, wait_of

#: More links are not followed.
LINKS = 8
#: What threads wait for that tells why their process does not get on: a timer alone is what idle helpers sleep by, too.
_TELLING = frozenset({"process", "service", "storage", "person"})


def chain_of(reading: WakeReading) -> WakeChain | None:
    """Return the chain that begins at a rank's main thread; None if nothing was read of it."""
    processes = {process.pid: process for process in reading.processes}
    links: list[WakeLink] = []
    pid = reading.pid
    while pid in processes and len(links) < LINKS and all(link.pid != pid for link in links):
        process = processes[pid]
        if not process.threads:
            break
        wait = _telling_wait(reading, process)
        links.append(WakeLink(pid=pid, command=process.command, wait=wait))
        pid = _next_pid(wait, processes)
    if not links:
        return None
    known = {link.pid for link in links}
    ends = tuple(waker.words for waker in links[-1].wait.wakers if waker.words and waker.pid not in known)[:NAMED]
    return WakeChain(links=tuple(links), sentence=_sentence(links), ends=ends, arrows=_arrows(links, ends))


def _next_pid(wait: ThreadWait, processes: Mapping[int, ProcessReading]) -> int:
    """Return the one process that a wait is for, 0 if there is none: of a family the ancestor, whom the others work for."""
    if any(waker.kind not in ("process", "itself", "thread") for waker in wait.wakers):
        return 0
    pids = {waker.pid for waker in wait.wakers if waker.kind == "process"}
    eldest = [pid for pid in pids if pid not in processes or processes[pid].parent not in pids]
    return eldest[0] if len(eldest) == 1 else 0


def _telling_wait(reading: WakeReading, process: ProcessReading) -> ThreadWait:
    """Return what the main thread waits for; where that is another thread, and one of them alone tells why, its wait."""
    main = wait_of(reading, process, process.threads[0])
    if owner_of(main):
        return _held(reading, process, main)
    if not any(waker.kind == "thread" for waker in main.wakers) or process.hidden_threads:
        return main
    others = [wait_of(reading, process, thread) for thread in process.threads[1:]]
    if any(wait.doing == "runs" for wait in others):
        return _deeper(main, "another of its threads runs", main)
    telling = [wait for wait in others if _tells(wait)]
    if len(telling) != 1:
        telling = telling or [wait for wait in others if wait.until_s is not None and len(wait.wakers) == 1]
    if len(telling) != 1:
        return main
    return _deeper(main, f"another of its threads {telling[0].doing}", telling[0])


def owner_of(wait: ThreadWait) -> int:
    """Return the thread that holds the lock that a wait is for; 0 if it is for no lock, or the owner is not known."""
    return next((waker.thread for waker in wait.wakers if waker.thread), 0)


def _held(reading: WakeReading, process: ProcessReading, main: ThreadWait) -> ThreadWait:
    """Return the main thread's wait told by those of the threads that hold one lock after the other."""
    threads = {thread.tid: thread for thread in process.threads}
    doing, wait, seen = [main.doing], main, {process.pid}
    while (owner := owner_of(wait)) in threads and owner not in seen:
        seen.add(owner)
        wait = wait_of(reading, process, threads[owner])
        doing.append(wait.doing)
    return ThreadWait(
        doing=", which ".join(doing),
        call=main.call,
        wakers=main.wakers if wait is main else (*main.wakers, *wait.wakers),
        until_s=main.until_s,
    )


def _tells(wait: ThreadWait) -> bool:
    """Whether all that may wake a thread is known, and more than a timer: idle helpers wait for any caller."""
    kinds = {waker.kind for waker in wait.wakers} - {"itself"}
    return bool(kinds) and kinds <= _TELLING


def _deeper(main: ThreadWait, doing: str, other: ThreadWait) -> ThreadWait:
    """Return the main thread's wait told by that of another thread."""
    return ThreadWait(
        doing=f"waits for a lock while {doing}",
        call=main.call,
        wakers=(*main.wakers, *other.wakers),
        until_s=main.until_s,
    )


def _sentence(links: list[WakeLink]) -> str:
    return ", which ".join(link.wait.doing for link in links)


def _arrows(links: list[WakeLink], ends: tuple[str, ...]) -> str:
    """Draw the chain; the last link's wakers end it."""
    parts = [f"pid {link.pid} {link.command}".rstrip() for link in links]
    return " ← ".join([*parts, " or ".join(ends)]) if ends else f"{' ← '.join(parts)} {links[-1].wait.doing}"
