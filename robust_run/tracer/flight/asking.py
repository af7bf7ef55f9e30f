"""When a rank's recorders are asked, and for what: often where that costs little, bounded everywhere. Pure.

NCCL's recorder tells its counts alone, for some 0.3 ms of a thread of C++, so it is asked every two seconds. gloo's tells all or
nothing (28 ms): a worker that makes steps writes its counts itself (`arm/clocks.py`), so only one that has shown no sign of
life for two seconds is asked. Names of groups are in whole answers alone; those are asked for when there is a group without
one. No recorder takes more than a two hundredth of a core, whatever its size, and a twentieth while it has work under way and its
rank is silent: then it matters soon whether that gets done. Who does not answer is asked less and less.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec

#: How often counts are looked at, at most.
EVERY_S = 2.0
#: A rank without a call or a step for so long is asked.
QUIET_S = 2.0
#: Answers are at least so many times as far apart as one takes; where it matters (see above) not further apart than `SOON_S`.
REST, REST_OPEN, SOON_S = 200.0, 20.0, 5.0
#: Who does not answer is asked again after so long, twice as long after each time, at most so long.
SILENT_S, LONGEST_S = 10.0, 60.0
#: Where no server is: it begins with the first process group.
ABSENT_S = 5.0
#: Names are asked for so often at most, and half as often after each time, down to once in an hour: what a recorder has forgotten
#: of a group that is seldom used it will not tell.
NAMES_S, LONGEST_NAMES_S = 60.0, 3600.0

Question = Literal["nccl", "nccl_whole", "gloo_whole"]


class _Recorder(msgspec.Struct):
    next_s: float = 0.0
    names_s: float = 0.0
    names_pause_s: float = NAMES_S
    failures: int = 0
    is_there: bool = True


class AskPlan:
    """One rank's."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self._every_s = every_s
        self._nccl, self._gloo = _Recorder(), _Recorder()

    def due(self, now_s: float, quiet_s: float, unnamed: Collection[tuple[bool, int]]) -> Question | None:
        """Return what to ask now. `quiet_s`: for how long there was no call or step; `unnamed`: groups, as of `Progress`."""
        nccl, gloo = self._nccl, self._gloo
        if nccl.is_there and now_s >= nccl.next_s:
            wants_names = now_s >= nccl.names_s and any(on_nccl for on_nccl, _ in unnamed)
            return "nccl_whole" if wants_names else "nccl"
        wants_names = now_s >= gloo.names_s and any(not on_nccl for on_nccl, _ in unnamed)
        if gloo.is_there and now_s >= gloo.next_s and (wants_names or quiet_s >= QUIET_S):
            return "gloo_whole"
        return None

    def answered(self, question: Question, took_s: float, now_s: float, *, matters: bool = False) -> None:
        """Take note of an answer. `matters`: the rank is silent and has work under way."""
        recorder = self._of(question)
        recorder.failures = 0
        rest_s = min(REST_OPEN * took_s, SOON_S) if matters else REST * took_s
        recorder.next_s = now_s + max(self._every_s, rest_s)
        if question != "nccl":
            recorder.names_s = now_s + recorder.names_pause_s
            recorder.names_pause_s = min(2 * recorder.names_pause_s, LONGEST_NAMES_S)

    def refused(self, question: Question) -> None:
        """There is no such recorder in this process: it is not asked again."""
        self._of(question).is_there = False

    def absent(self, question: Question, now_s: float) -> None:
        """No server listens (yet)."""
        self._of(question).next_s = now_s + ABSENT_S

    def failed(self, question: Question, now_s: float) -> None:
        """Nothing came, or nonsense."""
        recorder = self._of(question)
        recorder.next_s = now_s + min(SILENT_S * 2.0**recorder.failures, LONGEST_S)
        recorder.failures = min(recorder.failures + 1, 8)
        if question != "nccl":
            recorder.names_s = recorder.next_s + NAMES_S

    def _of(self, question: Question) -> _Recorder:
        return self._gloo if question == "gloo_whole" else self._nccl
