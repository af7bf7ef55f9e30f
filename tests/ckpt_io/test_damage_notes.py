"""What a worker finds wrong with a checkpoint is left for its launcher, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io import notes as damage_notes
from robust_run.ckpt_io.notes import DamageNote
from robust_run.ckpt_io.notes import leave_damage as leave_note
from robust_run.ckpt_io.notes import read_damage as read_notes
from robust_run.launcher.agent.damage import found_by
from robust_run.launcher.model.resume_events import ResumePoint

READ = """
import sys
from robust_run.ckpt_io.reading import open_checkpoint
from robust_run.errors import RobustRunError
for url in sys.argv[1:]:
    try:
        with open_checkpoint(url) as opened:
            for index, file in enumerate(opened.manifest.files):
                opened.read_bytes(index, 0, file.size_bytes)
    except RobustRunError as error:
        print(type(error).__name__, getattr(error, "uuid", ""), getattr(error, "url", ""))
"""


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage_notes, "_left", set())


def place(tmp_path: Path, **more: str) -> tuple[Path, dict[str, str]]:
    """The folder of rank 3 in attempt 2, and what its worker is told."""
    folder = tmp_path / "run" / "attempt_2" / "3"
    folder.mkdir(parents=True)
    told = {
        "ROBUST_RUN_DIR": str(tmp_path / "run"),
        "TORCHELASTIC_RESTART_COUNT": "2",
        "RANK": "3",
        "ROBUST_RESUME": "/c/s",
    }
    return folder, {**told, **more}


def flip(folder: Path) -> str:
    part = next(folder.rglob("*.part"))
    data = bytearray(part.read_bytes())
    data[0] ^= 1
    part.write_bytes(data)
    return part.name


def test_damage_that_a_worker_reads_is_noted_with_the_checkpoint_it_is_of(tmp_path: Path) -> None:
    folder, env = place(tmp_path)
    bad, refused, good = tmp_path / "bad", tmp_path / "refused", tmp_path / "good"
    made = make_checkpoint([bad], {"x": b"content"}, step=3)
    for each in (refused, good):
        make_checkpoint([each], {"x": b"content"}, step=2)
    part = flip(bad)
    (refused / "MANIFEST").write_bytes(b"rrck 1 nonsense\n")
    argv = [sys.executable, "-c", READ, *map(str, (bad, bad, refused, good, tmp_path / "nothing"))]
    done = subprocess.run(argv, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=True)
    said = [line.split() for line in done.stdout.splitlines()]
    assert said[0] == said[1] == ["Damaged", made.uuid, str(bad)]
    assert [line[0] for line in said[2:]] == ["ManifestRefused", "NotACheckpoint"]
    notes = {note.url: note for note in read_notes(str(folder))}
    assert set(notes) == {str(bad), str(refused)}, "what is not there is no damage"
    assert notes[str(bad)].uuid == made.uuid
    assert notes[str(bad)].reason == f"unit 0 of {part} in {bad} has a wrong digest"
    assert notes[str(refused)].uuid == "" and notes[str(refused)].reason.startswith("its manifest is refused: ")


@pytest.mark.parametrize(
    "more", [{"ROBUST_RESUME": ""}, {"RANK": "../x"}, {"ROBUST_RUN_DIR": ""}, {"ROBUST_RUN_DIR": "/nowhere"}]
)
def test_who_was_told_nothing_leaves_nothing_and_nothing_is_raised(tmp_path: Path, more: dict[str, str]) -> None:
    folder, env = place(tmp_path, **more)
    leave_note("/c/s", "0" * 32, "x", env)
    assert list(folder.iterdir()) == []


def test_a_process_leaves_few_notes(tmp_path: Path) -> None:
    folder, env = place(tmp_path)
    for number in range(100):
        leave_note("/c", f"{number:032x}", "y" * 10_000, env)
    assert len(list(folder.iterdir())) == len(read_notes(str(folder))) <= 8
    assert all(len(note.reason) <= 500 for note in read_notes(str(folder)))


def test_what_is_no_note_is_left_out(tmp_path: Path) -> None:
    folder, env = place(tmp_path)
    leave_note("/c", "ab", "why", env)
    (folder / "damaged-bad.json").write_text("{")
    (folder / "damaged-new.json").write_text(json.dumps({"schema": 2, "uuid": "cd", "url": "/d", "reason": "r"}))
    (folder / "damaged-link.json").symlink_to(folder / "damaged-ab.json")
    os.mkfifo(folder / "damaged-pipe.json")
    assert read_notes(str(folder)) == [DamageNote(uuid="ab", url="/c", reason="why")]
    assert read_notes(str(tmp_path / "nowhere")) == []


def test_only_what_the_attempt_started_from_counts(tmp_path: Path) -> None:
    folder, env = place(tmp_path)
    point = ResumePoint(source="storage", step=3, uuid="ab", name="s")
    leave_note("/c/other", "cd", "another one, which the program chose", env)
    assert found_by({3: str(folder)}, point, "/c/s") is None
    leave_note("/c/s", "", "its manifest is refused", env)
    found = found_by({2: str(tmp_path), 3: str(folder)}, point, "/c/s/")
    assert found is not None and (found.rank, found.uuid, found.step, found.name) == (3, "ab", 3, "s")
    own = ResumePoint(source="storage", step=3, name="s")
    leave_note("/c/mine", "ef", "a wrong digest\x1b[2J", env)
    found = found_by({3: str(folder)}, own, "/c/mine")
    assert found is not None and found.uuid == "ef" and found.reason.isprintable()
