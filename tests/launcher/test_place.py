"""A place of workers: what goes wrong with it is the reason of a rank that fails of it, and what is only worth knowing is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from robust_run.clock import SystemClock
from robust_run.launcher.agent.places.place import Hears, HeldPlace

if TYPE_CHECKING:
    from robust_run.launcher.model.job import JobSpec
    from robust_run.prefetch.window import ImageStart

SIGBUS = 7


class Made:
    """A place that is always there."""

    inside = None
    prepared = None
    reason = ""

    def stop(self) -> None:
        return


class Place(HeldPlace[Made]):
    kind = "image"
    where = "the image"
    uses = ()

    @property
    def sentence(self) -> str:
        return ""

    def program(self, argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(argv)

    def enter(self, argv: Sequence[str]) -> tuple[str, ...]:
        return tuple(argv)

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return dict(env)

    def report(self, path: str, start: ImageStart | None) -> None:
        del path, start


def test_a_note_is_said_and_is_nobodys_reason_for_failing() -> None:
    said: list[str] = []
    heard: list[Hears] = []

    def start(hears: Hears) -> Made:
        heard.append(hears)
        return Made()

    place = Place(cast("JobSpec", None), "image x", SystemClock(), said.append, start)
    [hears] = heard
    hears.note("block 17 of x in the cache /cache did not match its digest; fetched again")
    assert place.blame(None, -SIGBUS) is None, "the block was put right: the rank died of something else"
    hears.trouble("block 3 could not be read: nobody answers")
    blamed = place.blame(None, -SIGBUS)
    assert blamed is not None
    assert blamed.line == "the image x failed: block 3 could not be read: nobody answers"
    place._say.flush()
    assert said == [
        "image x: block 17 of x in the cache /cache did not match its digest; fetched again",
        "image x: block 3 could not be read: nobody answers",
    ]
