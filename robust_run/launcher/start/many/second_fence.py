"""The guard's fence: it kills the workers of an agent that is stopped or stuck while its lease is over, and spares the agent.

How it knows: the agent notes in memory that both share when its workers must be dead, and moves that time at each renewal. A time
that has passed by `GUARD_AFTER_S` means that no renewal came, and that the agent, which looks 20 times a second, did not act.

What looks the same on a healthy node: a machine that stood still as a whole. The guard sees that its own looks were far apart,
and gives the agent a moment to do it by itself.

Why the agent lives on: it may come back (SIGCONT, a busy machine, a debugger), finds its workers dead and its lease over, and
returns to the controller as a node that stands by; the job of a node that hosts the controller goes on. Nothing of an attempt is
started meanwhile: an agent obeys no order while its lease is over. One that does nothing for `GIVEN_UP_S` is killed, or the
node would wait for it for ever.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Collection
from typing import Protocol

from robust_run.launcher.agent.workers.process_tree import Killing, Sweep, send
from robust_run.launcher.start.child_end import wait_for_end
from robust_run.launcher.start.priority import raise_priority

#: How often the fence is looked at, and how often while something is left that must be dead.
LOOK_S = 0.05
KILLING_LOOK_S = 0.002
#: What is left after so long cannot be killed for now: it waits in the kernel.
AT_ONCE_S = 2.0
#: Looks further apart than this mean that the guard stood still too, and most likely its agent with it.
HELD_UP_S = 0.5
#: What an agent then gets to end its workers by itself.
OWN_MOMENT_S = 0.3
#: How long, of the time in which the guard is awake, an agent may do nothing about a lease that is over.
GIVEN_UP_S = 600.0


class Fence(Protocol):
    """What guard and agent share, see `start.many.fence.Cell`."""

    def is_over(self, now_s: float) -> bool:
        """Whether what the agent runs must be dead."""
        ...

    def spared(self) -> Collection[int]:
        """Return the children of the agent that are no part of an attempt and must live on: the controller, above all."""
        ...


class Killer(Protocol):
    """Ends what an agent runs."""

    def kill(self, spared: Collection[int], now_s: float) -> bool:
        """Kill everything but these and what is below them; return whether there was anything."""
        ...

    def give_up(self) -> None:
        """Kill the agent itself."""
        ...


class SecondFence:
    """What the guard does about the fence of its agent."""

    def __init__(self, fence: Fence, killer: Killer, say: Callable[[], None], now_s: float) -> None:
        """`say`: called once for each lease that ended like this."""
        self._fence = fence
        self._killer = killer
        self._say = say
        self._said = False
        self._looked_at_s = now_s
        self._kill_at_s: float | None = None
        self._idle_s = 0.0
        """How long the agent has done nothing about it, counted while the guard was awake."""

    def look(self, now_s: float) -> float:
        """Act if it is time; return after how many seconds to look again."""
        apart_s, self._looked_at_s = now_s - self._looked_at_s, now_s
        if not self._fence.is_over(now_s):
            self._kill_at_s, self._idle_s, self._said = None, 0.0, False
            return LOOK_S
        self._idle_s += min(apart_s, HELD_UP_S)
        if self._kill_at_s is None:
            self._kill_at_s = now_s + OWN_MOMENT_S if apart_s > HELD_UP_S else now_s
        if self._idle_s >= GIVEN_UP_S:
            self._killer.give_up()
        if now_s < self._kill_at_s or not self._killer.kill(self._fence.spared(), now_s):
            return LOOK_S
        if not self._said:
            self._said = True
            self._say()
        return KILLING_LOOK_S if now_s < self._kill_at_s + AT_ONCE_S else LOOK_S


class Below:
    """Kills what runs below an agent."""

    def __init__(self, agent: int) -> None:
        self._agent = agent
        self._spared: Collection[int] = ()
        self._sweep = Sweep(agent, spare=lambda: self._spared, owned=tuple)
        self._killing: Killing | None = None

    def kill(self, spared: Collection[int], now_s: float) -> bool:
        """See `Killer`."""
        self._spared = spared
        if not self._sweep.left():
            self._killing = None
            return False
        if self._killing is None:
            self._killing = Killing(self._sweep, now_s)
        self._killing.round(now_s)
        return True

    def give_up(self) -> None:
        """See `Killer`."""
        send(self._agent, signal.SIGKILL)


def wait(agent: int, fence: Fence) -> int:
    """Wait for the agent's end, minding its fence; return its status as `waitpid` gives it."""
    raise_priority()
    said = f"robust-run: the agent (pid {agent}) did not answer when its lease was over; its workers were ended"
    second = SecondFence(fence, Below(agent), lambda: print(said, file=sys.stderr, flush=True), time.monotonic())
    return wait_for_end(agent, lambda: second.look(time.monotonic()))
