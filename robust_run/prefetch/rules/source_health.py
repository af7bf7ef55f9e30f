"""How each source has behaved, and so which one is asked next. Pure: time comes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from robust_run.prefetch.rules.types import FetchLimits, SourceCounts

#: After the first failure a source is left alone this long, doubled with each one that follows at once.
_FIRST_BACK_OFF_S = 0.1
#: A request is late after so many times what requests took lately; each new one counts for this share of that.
_LATE_TIMES, _NEWEST_SHARE = 3.0, 0.2
#: A source is left alone for as long as it asks for (Retry-After), up to this.
_LONGEST_ASKED_S = 20.0


class _Record(msgspec.Struct):
    """One source."""

    name: str
    quiet_until_s: float = 0.0
    shunned_until_s: float = 0.0
    failures_in_a_row: int = 0
    requests: int = 0
    good_bytes: int = 0
    wrong_blocks: int = 0
    failures: int = 0
    took_s: float = 0.0
    """Requests that came, lately and on average."""


class Health:
    """The sources in the order they are preferred, and when each may be asked again."""

    def __init__(self, names: tuple[str, ...], limits: FetchLimits) -> None:
        """`names`: for people."""
        self._records = [_Record(name) for name in names]
        self._limits = limits

    def quiet_until_s(self, source: int) -> float:
        """Return from when on a source may be asked."""
        return self._records[source].quiet_until_s

    def is_shunned(self, source: int, now_s: float) -> bool:
        """Whether it has lied lately: it is asked only where no other source has the block."""
        return self._records[source].shunned_until_s > now_s

    def late_after_s(self, source: int) -> float:
        """Return after how long a request that a read waits for is made a second time."""
        return max(self._limits.hedge_after_s, _LATE_TIMES * self._records[source].took_s)

    def came(self, source: int, good_bytes: int, wrong_blocks: int, now_s: float, took_s: float = 0.0) -> None:
        """Note that a request gave bytes, how many blocks of them were wrong, and how long it took."""
        record = self._records[source]
        record.took_s += (took_s - record.took_s) * (_NEWEST_SHARE if record.requests else 1.0)
        record.requests += 1
        record.good_bytes += good_bytes
        record.wrong_blocks += wrong_blocks
        if wrong_blocks:
            record.quiet_until_s = now_s + _FIRST_BACK_OFF_S
            record.shunned_until_s = now_s + self._limits.wrong_s
        else:
            record.failures_in_a_row = 0

    def failed(self, source: int, now_s: float, retry_after_s: float = 0.0) -> None:
        """Note that a request gave nothing, and when the source wants to be asked again.

        Requests that were under way together count as one failure.
        """
        record = self._records[source]
        record.failures += 1
        if now_s >= record.quiet_until_s:
            back_off_s = min(self._limits.back_off_s, _FIRST_BACK_OFF_S * 2**record.failures_in_a_row)
            record.failures_in_a_row = min(record.failures_in_a_row + 1, 16)
            record.quiet_until_s = now_s + back_off_s
        record.quiet_until_s = max(record.quiet_until_s, now_s + min(retry_after_s, _LONGEST_ASKED_S))

    def name(self, source: int) -> str:
        """Return a source's name."""
        return self._records[source].name

    def counts(self) -> tuple[SourceCounts, ...]:
        """Return what each has done."""
        return tuple(
            SourceCounts(
                name=record.name,
                requests=record.requests,
                good_bytes=record.good_bytes,
                wrong_blocks=record.wrong_blocks,
                failures=record.failures,
            )
            for record in self._records
        )


# --- How long a read may wait for a block, and when it is time to say that reads wait. Pure: time comes in.

#: A block that was given up this long ago is refused at once: for what it got EIO for, the kernel asks again, page by page.
_JUST_LOST_S = 5.0
#: For one request, once it may be made.
_ASK_S = 1.0
#: After this long, it is said that reads wait.
SLOW_S = 10.0
_SAY_EVERY_S = 30.0
_NEVER_S = float("-inf")


class Demand(Protocol):
    """A block that reads wait for."""

    since_s: float
    limit_s: float
    reason: str


class SourcePatience:
    """What was given up when."""

    def __init__(self, limits: FetchLimits, *, has_given: bool) -> None:
        """`limits`: how long a read may wait, and how long a source that fails is left alone.

        `has_given`: whether some source ever gave a block. One that refuses from the beginning is most likely right.
        """
        self._limits = limits
        self._lost: dict[int, tuple[float, str]] = {}
        self._is_silent, self._is_refusing = False, not has_given
        self._said_s = _NEVER_S

    def refusal(self, block: int, now_s: float) -> str:
        """Return why a block was given up a moment ago; "": it was not."""
        lost_s, reason = self._lost.get(block, (_NEVER_S, ""))
        return reason if now_s - lost_s < _JUST_LOST_S else ""

    def is_out(self, since_s: float, now_s: float) -> bool:
        """Whether a block is given up that all sources have refused, for a read that has waited since then.

        A login that has run out, a file that is being put in place: such things pass. Once they did not, they are not waited for
        again, until some source has given something.
        """
        return self._is_refusing or now_s - since_s >= self._limits.refusal_s

    def limit_s(self) -> float:
        """Return how long a read that begins now may wait for a block."""
        # Programs and the kernel read one block after the other. Each is asked for once, when a source is not left alone.
        limit_s = self._limits.read_limit_s
        return min(limit_s, self._limits.back_off_s + _ASK_S) if self._is_silent else limit_s

    def gave_up(self, block: int, reason: str, now_s: float, *, late: bool) -> None:
        """Note that a block came wrong, or did not come in time (`late`)."""
        self._lost[block] = (now_s, reason)
        self._is_silent = self._is_silent or late
        self._is_refusing = self._is_refusing or not late

    def begin_anew(self) -> None:
        """Wait for sources as if none had failed: who reads from now on has not waited yet."""
        self._lost.clear()
        self._is_silent = self._is_refusing = False

    def came(self, good_bytes: int) -> None:
        """Note that some source has given bytes, and how many of them were good."""
        self._is_silent = False
        self._is_refusing = self._is_refusing and not good_bytes

    def slow(self, demands: Mapping[int, Demand], now_s: float) -> str:
        """Return a sentence where reads have waited for long, and it has not been said lately; else ""."""
        for block, demand in demands.items():
            waited_s = now_s - demand.since_s
            if SLOW_S <= waited_s < demand.limit_s and now_s - self._said_s >= _SAY_EVERY_S:
                self._said_s = now_s
                why = demand.reason or "it has not come yet"
                return (
                    f"reads have waited {waited_s:.0f} s for block {block}: {why}; they fail after {demand.limit_s:g} s"
                )
        return ""
