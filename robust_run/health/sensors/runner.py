"""Runs sensors, each in a thread of its own: one that hangs in a system call or a driver blocks no other, and is itself an alert.

Threads sleep nearly all the time. What a sensor says goes to one function, from any thread, one event at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from robust_run.health.sensors.budget import Budget
from robust_run.health.sensors.types import AbsentError, Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

LOOK_EVERY_S = 1.0
BEAT_EVERY = 3
"""Of these looks there is a sign of life."""
STANDSTILL_S = 5.0
"""We look every second: if we did not for so long, this process was stopped, or its machine was."""
MOST_TEXT_CHARS = 1000

Emit = Callable[[Event], None]


class Post:
    """One sensor at work."""

    def __init__(self, sensor: Sensor) -> None:
        self.sensor = sensor
        self.reading_since_s: float | None = None
        """When the reading began that has not ended; None between readings."""
        self.limit_s = sensor.timeout_s + sensor.open_s
        """What the reading that is under way, or the next one, may take."""
        self._state = sensor.start
        self._failed = ""
        self._budget = Budget()

    def turn(self, world: SensorWorld, now_s: Callable[[], float]) -> tuple[tuple[Event, ...], bool]:
        """Read and judge once; return what is to be said, and whether there will be another turn."""
        self.reading_since_s = now_s()
        try:
            sample = self.sensor.read(world)
        except AbsentError as error:
            return (self._note("absent", str(error), now_s()),), False
        except OSError as error:
            return self._unreadable(error, now_s()), True
        finally:
            self.reading_since_s = None
            self.limit_s = self.sensor.timeout_s
        mended = self._mended(now_s())
        self._state, events = self.sensor.judge(self._state, sample, now_s())
        return (*mended, *self._limited(events, now_s())), True

    def _unreadable(self, error: OSError, now_s: float) -> tuple[Event, ...]:
        text = f"it cannot be read: {error.strerror or error}"
        if text == self._failed:
            return ()
        self._failed = text
        return (self._note("unreadable", text, now_s),)

    def _mended(self, now_s: float) -> tuple[Event, ...]:
        if not self._failed:
            return ()
        self._failed = ""
        note = self._note("unreadable", "it can be read again", now_s)
        return (msgspec.structs.replace(note, kind="clear"),)

    def broken(self, error: Exception, now_s: float) -> Event:
        """Return what is said of a sensor that failed by its own fault."""
        return self._note("broken", f"this sensor failed and is off now: {type(error).__name__}: {error}"[:300], now_s)

    def _note(self, what: str, detail: str, now_s: float) -> Event:
        return Event(
            name=f"{self.sensor.name}.{what}", kind="note", subject=self.sensor.subject, detail=detail, at_s=now_s
        )

    def _limited(self, events: tuple[Event, ...], now_s: float) -> tuple[Event, ...]:
        if not events:
            return ()
        kept, left = self._budget.fit(events, now_s)
        if not left:
            return kept
        text = f"{left} or more events are left out until this minute is over"
        return (*kept, self._note("flood", text, now_s))


class SensorRunner:
    """All sensors of a node. `emit` is called under a lock, from sensor threads and from `look`."""

    def __init__(
        self, sensors: Iterable[Sensor], world: SensorWorld, emit: Emit, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._posts = [Post(sensor) for sensor in sensors]
        self._world = world
        self._emit = emit
        self._now_s = now_s
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._hung: Levels = {}
        self._looked_s = now_s()
        self._resumed_s = float("-inf")
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads. They are daemons: one that hangs keeps no process alive."""
        for post in self._posts:
            name = f"sensor {post.sensor.name} {post.sensor.subject}"[:60]
            thread = threading.Thread(target=self._watch, args=(post,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def run(self, beat: Callable[[], None] = lambda: None) -> None:
        """Start, and look after the threads until `stop`; `beat` is called, apart from `emit`, as a sign of life."""
        self.start()
        turn = 0
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()
            if turn % BEAT_EVERY == 0:
                with self._lock:
                    beat()
            turn += 1

    def look(self) -> None:
        """Say which sensors hang."""
        now_s = self._now_s()
        if now_s - self._looked_s > STANDSTILL_S:
            self._resumed_s = now_s
        self._looked_s = now_s
        self._hung, events = follow(self._hung, hung(self._posts, now_s, self._resumed_s), now_s)
        self._say(events)

    def stop(self, wait_s: float = 0.0) -> None:
        """Let the threads end at their next turn; those that hang are left behind. Only who waits may not be one of them."""
        self._stop.set()
        if wait_s <= 0:
            return
        deadline_s = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))

    def _watch(self, post: Post) -> None:
        goes_on = True
        while goes_on and not self._stop.is_set():
            try:
                events, goes_on = post.turn(self._world, self._now_s)
            except Exception as error:  # a mistake of ours in one sensor must not end the others
                events, goes_on = (post.broken(error, self._now_s()),), False
            self._say(events)
            if goes_on:
                self._stop.wait(post.sensor.interval_s)

    def _say(self, events: tuple[Event, ...]) -> None:
        if events:
            with self._lock:
                for event in events:
                    self._emit(cleaned(event))


def hung(posts: Iterable[Post], now_s: float, resumed_s: float = float("-inf")) -> list[Condition]:
    """Return a condition for each sensor whose reading takes longer than it may.

    `resumed_s`: when this process last went on after a standstill of its own, which is no reading's fault.
    """
    found = []
    for post in posts:
        since_s = post.reading_since_s
        if since_s is None or now_s - max(since_s, resumed_s) <= post.limit_s:
            continue
        found.append(
            Condition(
                name=f"{post.sensor.name}.hung",
                subject=post.sensor.subject,
                detail=f"no answer for {now_s - since_s:.0f} s (limit {post.limit_s:g} s): {post.sensor.about}",
                value=now_s - since_s,
                limit=post.limit_s,
                repeat_s=60.0,
            )
        )
    return found


def cleaned(event: Event) -> Event:
    """Return the event as it may be shown on a terminal: names of processes, mounts and devices are untrusted."""
    if len(event.detail) <= MOST_TEXT_CHARS and event.detail.isprintable() and event.subject.isprintable():
        return event
    subject, detail = (
        "".join(character if character.isprintable() else "?" for character in text[:MOST_TEXT_CHARS])
        for text in (event.subject, event.detail)
    )
    return msgspec.structs.replace(event, subject=subject, detail=detail)
