"""A place of workers: what goes wrong with it is the reason of a rank that fails of it, and what is only worth knowing is not;
what a start reads of it is kept, of each part by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError
from robust_run.launcher.agent.places.image_place import ImagePlace, MadeImage
from robust_run.launcher.agent.places.made_place import Hears
from robust_run.launcher.agent.places.place import ANEW_S, HeldPlace
from robust_run.launcher.agent.places.start_recording import RecordedPart, StartRecording
from robust_run.mounts.holding import HolderReady
from robust_run.prefetch.errors import ControlFailed
from robust_run.prefetch.inside.asking import AskedServer
from robust_run.prefetch.launch import LaunchFacts, Prepared, ServeOptions, plan
from robust_run.prefetch.rules.types import BlockMap, FetchLimits, HotKey, Status, Touch

if TYPE_CHECKING:
    from robust_run.launcher.model.job import JobSpec
    from robust_run.prefetch.window import ImageStart

SIGBUS = 7


class Made:
    """A place that is always there."""

    inside: Inside | None = None
    prepared = None
    namespaces = ()

    def __init__(self) -> None:
        self.reason = ""

    def stop(self) -> None:
        return


class FakeClock(SystemClock):
    """Stands still but for the test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Inside:
    """A place with a block server."""

    def __init__(self) -> None:
        self.asked, self.has_lost_reads = 0, False

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


def test_an_attempt_waits_for_a_place_that_is_made_anew_and_nobody_is_blocked(tmp_path: Path) -> None:
    may_be_made, made, spec = threading.Event(), list[Made](), SimpleNamespace(many=None, record_window_s=1.0)

    def start(_hears: Hears) -> Made:
        assert not made or may_be_made.wait(60)
        made.append(Made())
        return made[-1]

    clock = FakeClock()
    place = Place(cast("JobSpec", spec), "image x", clock, [].append, start)
    where = (0, "a:1", str(tmp_path / "start.json"))
    assert place.is_ready()
    assert not place.begin(*where)
    made[0].reason = "its holder ended"
    assert [place.is_ready() for _ in range(3)] == [False] * 3, "asked, it says so at once"
    clock.now_s += ANEW_S
    assert place.is_ready(), "it is not waited for without a limit"
    with pytest.raises(PlatformError, match="still being mounted again"):
        place.begin(*where)
    may_be_made.set()
    assert place._anew is not None
    place._anew.join(60)
    assert place.is_ready()
    assert place.begin(*where), "what ran in the place that was lost is lost"
    assert not place.begin(*where)


def test_a_place_in_which_reads_failed_is_made_anew_for_the_next_attempt(tmp_path: Path) -> None:
    """The kernel's squashfs fails a block again that it could not read once, though the store has long been back."""
    made: list[Made] = []
    fails = False

    def start(_hears: Hears) -> Made:
        if fails:
            raise PlatformError("the store is still gone")
        made.append(Made())
        made[-1].inside = Inside()
        return made[-1]

    def attempt() -> bool:
        while not place.is_ready():
            if place._anew is not None:
                place._anew.join(60)
        return place.begin(0, "a:1", str(tmp_path / "start.json"))

    spec = cast("JobSpec", SimpleNamespace(many=None, record_window_s=1.0))
    place = Place(spec, "image x", FakeClock(), [].append, start)
    assert not attempt()
    assert not attempt()
    assert made[0].inside is not None
    made[0].inside.has_lost_reads = fails = True
    attempt()
    assert place._made is made[0], "where it cannot be made again, the old one is still of use"
    fails = False
    assert attempt(), "what ran in the old one is not to be used"
    assert place._made is made[1]
    assert not attempt()
    assert len(made) == 2


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


class Server(AskedServer):
    """A block server that saw some reads, or none that can be had any more."""

    def __init__(self, *quanta: int, lost: str = "") -> None:
        super().__init__("/socket", lambda: lost)
        self.quanta, self.told = quanta, list[tuple[int, float | None]]()

    def status(self, limit_s: float = 0.0) -> Status | None:
        del limit_s
        return None

    def close_window(self, limit_s: float = 0.0) -> None:
        del limit_s
        if lost := self._why_lost():
            raise ControlFailed(lost)

    def touches(self, limit_s: float = 0.0) -> tuple[list[Touch], float]:
        del limit_s
        return [Touch(quantum, quantum) for quantum in self.quanta], 1.0

    def background(self, width: int, bytes_per_s: float | None = None, limit_s: float = 0.0) -> None:
        del limit_s
        self.told.append((width, bytes_per_s))


def prepared(folder: Path, name: str) -> Prepared:
    block_map = BlockMap(size_bytes=8 << 20, sha256="0" * 64, digests=bytes(16 * 8))
    facts = LaunchFacts(block_map=block_map, remote=True, have=bytes(8), hot=None, free_bytes=None)
    return Prepared(
        image_url=f"http://127.0.0.1:1/{name}.sqsh?signed",
        cache_root=str(folder),
        block_map=block_map,
        key=HotKey(image=name * 64, launch="abc", machine="x86_64"),
        hot=None,
        plan=plan(facts, FetchLimits()),
        options=ServeOptions(),
        problems=(),
    )


def test_what_a_start_reads_is_kept_of_the_image_and_of_the_set_up_over_it_each_by_itself(tmp_path: Path) -> None:
    said: list[str] = []
    reports: list[ImageStart] = []
    spec = cast("JobSpec", SimpleNamespace(many=None, record_window_s=60.0))
    image, laid, gone = (prepared(tmp_path, name) for name in "123")
    recording = StartRecording(spec, "the image", SystemClock(), said.append)
    recording.conclude(
        [
            RecordedPart("image", Server(lost="its holder ended"), gone, reports.append),
            RecordedPart("image", Server(1, 2), image, reports.append),
            RecordedPart("set-up", Server(7), laid, reports.append),
        ],
        "step",
    )
    assert recording.concluding is not None
    recording.concluding.join()
    kept = [each.store.load(each.key)[0] for each in (image, laid, gone)]
    assert [[(hot.start, hot.count) for hot in each.ranges] if each else None for each in kept] == [
        [(1, 2)],
        [(7, 1)],
        None,
    ]
    assert [start.touched_bytes for start in reports] == [2 << 17, 1 << 17]
    assert [sentence.partition(":")[0] for sentence in said] == [
        "what the start read of the image (image) is not kept",
        "image",
        "set-up",
    ]


def test_of_a_set_up_that_was_brought_as_a_whole_nothing_is_recorded(tmp_path: Path) -> None:
    place = ImagePlace.__new__(ImagePlace)
    inside = SimpleNamespace(ready=HolderReady(), laid=Server(1))
    for laid, count in ((None, 1), (prepared(tmp_path, "2"), 2)):
        made = MadeImage(inside, prepared(tmp_path, "1"), laid)  # type: ignore[arg-type]
        assert len(place._recorded(made)) == count
    assert [part.what for part in place._recorded(made)] == ["image", "set-up"]


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
