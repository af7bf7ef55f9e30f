"""How each source has behaved, and so which one is asked next. Pure: time comes in."""

from __future__ import annotations

import msgspec

from robust_run.prefetch.types import FetchLimits, SourceCounts

#: After the first failure a source is left alone this long, doubled with each one that follows at once.
_FIRST_BACK_OFF_S = 0.1


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
        """Whether it has lied lately: it is asked only where nobody else has the block."""
        return self._records[source].shunned_until_s > now_s

    def came(self, source: int, good_bytes: int, wrong_blocks: int, now_s: float) -> None:
        """Note that a request gave bytes, and how many blocks of them were wrong."""
        record = self._records[source]
        record.requests += 1
        record.good_bytes += good_bytes
        record.wrong_blocks += wrong_blocks
        if wrong_blocks:
            record.quiet_until_s = now_s + _FIRST_BACK_OFF_S
            record.shunned_until_s = now_s + self._limits.wrong_s
        else:
            record.failures_in_a_row = 0

    def failed(self, source: int, now_s: float) -> None:
        """Note that a request gave nothing. Requests that were under way together count as one failure."""
        record = self._records[source]
        record.failures += 1
        if now_s >= record.quiet_until_s:
            back_off_s = min(self._limits.back_off_s, _FIRST_BACK_OFF_S * 2**record.failures_in_a_row)
            record.failures_in_a_row = min(record.failures_in_a_row + 1, 16)
            record.quiet_until_s = now_s + back_off_s

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
