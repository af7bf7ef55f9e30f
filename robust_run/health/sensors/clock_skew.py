"""Watches the wall clock: jumps, and whether the kernel holds it to be synchronised (adjtimex). Certificates, leases in shared
folders and logs of several nodes need clocks that agree.

`offset_to` tells how far another node's clock is off, from one exchange of messages.
"""

from __future__ import annotations

import ctypes
import struct
import time

import msgspec

from robust_run.health.sensors.settings import ClockSettings
from robust_run.health.sensors.types import Condition, Event, Levels, Sensor, SensorWorld
from robust_run.health.signs.levels import follow

#: struct timex on 64-bit Linux is 208 bytes: modes, offset, freq, maxerror, esterror, status, ...
_TIMEX_BYTES = 256
_HEAD = struct.Struct("=I4xqqqqi")
_UNSYNCHRONISED = 0x40


class ClockSample(msgspec.Struct, frozen=True, kw_only=True):
    """The wall clock against the monotonic one, and what the kernel thinks of it."""

    unix_s: float
    monotonic_s: float
    synchronised: bool | None = None
    """None: the kernel does not say."""
    most_error_s: float | None = None


class ClockState(msgspec.Struct, frozen=True, kw_only=True):
    """What was read before."""

    before: ClockSample | None = None
    was_synchronised: bool = False
    levels: Levels = {}


def read(_: SensorWorld) -> ClockSample:
    """Return both clocks and the kernel's word."""
    before_s = time.monotonic()
    unix_s = time.time()
    monotonic_s = (before_s + time.monotonic()) / 2
    synchronised, most_error_s = _adjtimex()
    return ClockSample(unix_s=unix_s, monotonic_s=monotonic_s, synchronised=synchronised, most_error_s=most_error_s)


def _adjtimex() -> tuple[bool | None, float | None]:
    """Ask the kernel, changing nothing (modes = 0)."""
    if struct.calcsize("l") != 8:
        return None, None
    content = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(content)
    except (AttributeError, OSError):
        return None, None
    if answer < 0:
        return None, None
    _, _, _, most_error_us, _, status = _HEAD.unpack_from(content.raw)
    return not status & _UNSYNCHRONISED, most_error_us / 1e6


def judge(
    settings: ClockSettings, state: ClockState, sample: ClockSample, now_s: float
) -> tuple[ClockState, tuple[Event, ...]]:
    """Return whether the wall clock jumped, or went out of synchronisation that it once had."""
    events: list[Event] = []
    before = state.before
    if before is not None:
        jump_s = (sample.unix_s - sample.monotonic_s) - (before.unix_s - before.monotonic_s)
        if abs(jump_s) > settings.jump_s:
            detail = f"the wall clock jumped by {jump_s:+.2f} s (limit {settings.jump_s:g} s)"
            events.append(
                Event(
                    name="clock.jump",
                    kind="alert",
                    subject="",
                    detail=detail,
                    at_s=now_s,
                    value=jump_s,
                    limit=settings.jump_s,
                )
            )
    elif sample.synchronised is False:
        detail = "nothing synchronises the wall clock of this node, as far as its kernel knows"
        events.append(Event(name="clock.unsynchronised", kind="note", subject="", detail=detail, at_s=now_s))
    was = state.was_synchronised or bool(sample.synchronised)
    conditions = []
    error_s = sample.most_error_s
    if was and sample.synchronised is False and error_s is not None and error_s > settings.most_error_s:
        detail = f"the wall clock is not synchronised any more and may be {error_s:.1f} s off"
        conditions.append(
            Condition(
                name="clock.unsynchronised",
                subject="",
                detail=detail,
                value=error_s,
                limit=settings.most_error_s,
                hold_s=settings.hold_s,
                repeat_s=3600.0,
            )
        )
    levels, said = follow(state.levels, conditions, now_s)
    return ClockState(before=sample, was_synchronised=was, levels=levels), (*events, *said)


def offset_to(sent_unix_s: float, theirs_unix_s: float, got_unix_s: float) -> tuple[float, float]:
    """Return how far another clock is ahead of ours, and by how much that may be wrong (Cristian's method).

    We sent at `sent_unix_s` and got the answer at `got_unix_s`, by our clock; the other wrote the answer at
    `theirs_unix_s`, by its own. Seconds.
    """
    half_s = (got_unix_s - sent_unix_s) / 2
    return theirs_unix_s - (sent_unix_s + half_s), abs(half_s)


def judge_offset(settings: ClockSettings, offset_s: float, error_s: float, now_s: float) -> tuple[Event, ...]:
    """Return an alert if another node's clock is off for certain, by more than `most_error_s`."""
    certain_s = abs(offset_s) - error_s
    if certain_s <= settings.most_error_s:
        return ()
    detail = f"the wall clock is {-offset_s:+.2f} s off the controller's (limit {settings.most_error_s:g} s)"
    event = Event(
        name="clock.skew",
        kind="alert",
        subject="",
        detail=detail,
        at_s=now_s,
        value=-offset_s,
        limit=settings.most_error_s,
    )
    return (event,)


def sensor(settings: ClockSettings) -> Sensor:
    """Return the sensor."""
    return Sensor(
        name="clock",
        about="a wall clock that jumps, or is not synchronised any more",
        interval_s=settings.interval_s,
        timeout_s=settings.timeout_s,
        read=read,
        judge=lambda state, sample, now_s: judge(settings, state, sample, now_s),
        start=ClockState(),
    )
