"""A place of workers: what goes wrong with it is the reason of a rank that fails of it, and what is only worth knowing is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from robust_run.clock import SystemClock
from robust_run.launcher.agent.places.place import Hears, HeldPlace

if TYPE_CHECKING:
    from robust_run.launcher.model.job import JobSpec
    from robust_run.prefetch.window import ImageStart

SIGBUS = 7


class Made:
    """A place that is always there."""

    inside: Inside | None = None
    prepared = None
    reason = ""

    def stop(self) -> None:
        return


class Inside:
    """A place with a block server."""

    def __init__(self) -> None:
        self.asked = 0

    def wait_anew(self) -> None:
        self.asked += 1


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


def test_each_attempt_but_the_first_has_sources_waited_for_anew() -> None:
    """Else what an attempt waited for in vain is refused to all later ones within seconds, until no restart is left."""
    made = Made()
    made.inside = Inside()
    spec = cast("JobSpec", msgspec.defstruct("Spec", [("progress_after_s", float, 1.0), ("many", None, None)])())
    place = Place(spec, "image x", SystemClock(), print, lambda hears: made)
    asked = []
    for _ in range(3):
        place.begin(0, "host:1", "/nowhere")
        asked.append(made.inside.asked)
    assert asked == [0, 1, 2]
