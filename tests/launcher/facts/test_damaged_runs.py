"""Run directories that a disk, a crash or somebody's script has changed: facts of them are sound, or there are none."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from robust_run.errors import RobustRunError
from robust_run.fleet.words import RunFacts
from robust_run.launcher.operator.reading.facts_of_folder import facts_of_folder
from robust_run.launcher.operator.reading.run_facts import nobody_lives, read_facts

RECORDED = Path(__file__).resolve().parents[2] / "data" / "run_before_the_rooms"
JOURNAL = (RECORDED / "journal.jsonl").read_bytes()
INCIDENT = (RECORDED / "incidents" / "0001.json").read_bytes()
LINES = JOURNAL.splitlines(keepends=True)
NUMBERS = st.sampled_from([0, -1, 1e-9, 1e9, 1.7e9, 1e11, 1e18, -1e300, 1e300, 2**63])
ODD = st.one_of(NUMBERS, st.none(), st.text(max_size=8), st.booleans(), st.lists(NUMBERS, max_size=2), st.just({}))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from _places(item, (*path, key))


def _changed(data: bytes, draw: st.DrawFn) -> bytes:
    """Replace one value in a JSON object."""
    content = json.loads(data)
    place = draw(st.sampled_from(list(_places(content))))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = draw(ODD)
    return json.dumps(content).encode() + b"\n"


@st.composite
def journals(draw: st.DrawFn) -> bytes:
    """The recorded journal with lines that are missing, doubled, out of order, changed, cut short, or garbage."""
    lines = list(LINES)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("drop", "double", "move", "change", "change", "garbage"))):
            case "drop" if len(lines) > 1:
                del lines[place]
            case "double":
                lines.insert(place, lines[place])
            case "move":
                lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(place))
            case "change":
                lines[place] = _changed(lines[place], draw) if lines[place].startswith(b"{") else lines[place]
            case "garbage":
                lines[place] = draw(st.binary(max_size=30)) + b"\n"
    data = b"".join(lines)
    return data[: draw(st.integers(0, len(data)))] if draw(st.booleans()) else data


@st.composite
def incident_files(draw: st.DrawFn) -> bytes:
    match draw(st.sampled_from(("whole", "changed", "cut", "garbage", "empty"))):
        case "whole":
            return INCIDENT
        case "changed":
            return _changed(INCIDENT, draw)
        case "cut":
            return INCIDENT[: draw(st.integers(0, len(INCIDENT)))]
        case "garbage":
            return draw(st.binary(max_size=50))
    return b""


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _numbers(item)


def _assert_sound(facts: RunFacts) -> None:
    content = msgspec.to_builtins(facts)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=RunFacts) == facts, "it can be kept"
    assert all(math.isfinite(number) for number in _numbers(content))
    life_s = facts.until_s - facts.began_s
    assert life_s >= 0
    parts = [
        *msgspec.structs.astuple(facts.other),
        *(part for i in facts.incidents for part in msgspec.structs.astuple(i.lost)),
    ]
    assert min(parts) >= 0
    assert sum(parts) <= life_s * (1 + 1e-9) + 1e-3, "no second is lost twice"
    assert facts.ettr is None or 0 <= facts.ettr <= 1
    assert all(0 <= seconds <= life_s * (1 + 1e-9) + 1e-3 for seconds in facts.node_s.values())


@given(journals(), incident_files(), st.sampled_from(("", "done-0", "failed-300", "x")), st.binary(max_size=20))
def test_facts_are_sound_or_there_are_none(journal: bytes, incident: bytes, outcome: str, other: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "runs" / "a-run"
        (run / "incidents").mkdir(parents=True)
        (run / "journal.jsonl").write_bytes(journal)
        (run / "incidents" / "0001.json").write_bytes(incident)
        (run / "usage.json").write_bytes(other)
        if outcome:
            os.symlink(outcome, run / "outcome")
        try:
            facts = read_facts(str(run), 1.9e9, nobody_lives)
        except RobustRunError as error:
            assert str(run) in str(error)
            found = facts_of_folder(str(run.parent), 1.9e9, nobody_lives)
            assert (found.runs, sum(found.skipped.values()), found.skipped.get("not understood")) == ((), 1, None)
        else:
            _assert_sound(facts)
