"""One look at a folder of checkpoints: what is there, what is whole, which is the newest; for the launcher and for people."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import xxhash
from made_checkpoints import make_checkpoint

from robust_run.ckpt_io.catalog import latest
from robust_run.ckpt_io.newest import Known, look, newest_path
from robust_run.ckpt_io.seen import SeenCheckpoint


def two_targets(tmp_path: Path, *steps: int) -> Path:
    """Checkpoints whose parts lie in two folders; return the first."""
    for step in steps:
        make_checkpoint(
            [tmp_path / "a" / f"step-{step}", tmp_path / "b" / f"step-{step}"],
            {"x": bytes(3 << 20), "y": b"y"},
            step=step,
        )
    return tmp_path / "a"


def faults(root: Path, **more: object) -> dict[str, str | None]:
    return {seen.name: seen.fault for seen in look(str(root), **more).seen}  # type: ignore[arg-type]


def agreed(root: Path) -> str | None:
    """The newest whole one, as the launcher and `robust ckpt latest` have it."""
    found, path = latest(str(root)), newest_path(str(root))
    assert (found.url if found is not None else None) == path
    return None if path is None else Path(path).name


def test_a_part_that_is_missing_on_a_further_target_is_seen(tmp_path: Path) -> None:
    root = two_targets(tmp_path, 1, 2, 3)
    assert agreed(root) == "step-3"
    gone = next((tmp_path / "b" / "step-3").rglob("*.part"))
    gone.unlink()
    assert agreed(root) == "step-2"
    assert faults(root)["step-3"] == f"part {gone.name} is missing on {tmp_path}/b/step-3"
    cut = next((tmp_path / "b" / "step-2").rglob("*.part"))
    cut.write_bytes(cut.read_bytes()[:-1])
    assert agreed(root) == "step-1"
    assert (
        faults(root)["step-2"]
        == f"part {cut.name} on {tmp_path}/b/step-2 has {(1 << 20) - 1} bytes instead of {1 << 20}"
    )
    shutil.rmtree(tmp_path / "b" / "step-1")
    assert agreed(root) is None


def test_a_further_target_that_is_not_there_at_all_cannot_be_asked(tmp_path: Path) -> None:
    root = two_targets(tmp_path, 1, 2)
    (tmp_path / "b").rename(tmp_path / "mounted elsewhere")
    assert agreed(root) == "step-2", "the program may know where it is; if not, reading says so"


def test_targets_of_other_places_are_left_to_who_reads(tmp_path: Path) -> None:
    root = two_targets(tmp_path, 1)
    manifest = root / "step-1" / "MANIFEST"
    _, _, body = manifest.read_bytes().partition(b"\n")
    content = msgspec.json.decode(body)
    content["targets"][1] = "hdfs://nn/b/step-1"
    body = msgspec.json.encode(content)
    manifest.write_bytes(b"rrck 1 %s %d\n" % (xxhash.xxh3_128_hexdigest(body).encode(), len(body)) + body)
    assert faults(root) == {"step-1": ""}


def test_only_the_newest_are_looked_into_and_those_that_are_asked_for_by_name(tmp_path: Path) -> None:
    for step in range(1, 6):
        make_checkpoint([tmp_path / f"step-{step}"], {"x": b"1"}, step=step)
    assert faults(tmp_path) == {"step-5": "", "step-4": "", "step-3": None, "step-2": None, "step-1": None}
    assert faults(tmp_path, names=["step-2"])["step-2"] == ""
    found = look(str(tmp_path), most=2)
    assert ([seen.name for seen in found.seen], found.left_out) == (["step-5", "step-4"], 3)
    five = found.seen[0].uuid
    found = look(str(tmp_path), most=2, avoid=[five])
    assert [(seen.name, seen.fault) for seen in found.seen] == [("step-5", None), ("step-4", ""), ("step-3", "")]


def test_a_name_is_looked_for_even_if_the_list_of_the_folder_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_checkpoint([tmp_path / "step-1"], {}, step=1)
    listed = list(os.scandir(tmp_path))
    make_checkpoint([tmp_path / "step-2"], {}, step=2)

    class Old:
        """A list of the folder as a cache has it."""

        def __enter__(self) -> list[os.DirEntry[str]]:
            return listed

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr("robust_run.ckpt_io.newest.os.scandir", lambda _: Old())
    assert faults(tmp_path) == {"step-1": ""}
    assert faults(tmp_path, names=["step-2", "../x", "step-9", "", ".."]) == {"step-2": "", "step-1": ""}


def test_a_manifest_that_is_damaged_or_of_a_later_version_is_there_and_cannot_be_used(tmp_path: Path) -> None:
    for step in (1, 2):
        make_checkpoint([tmp_path / f"step-{step}"], {}, step=step)
    manifest = tmp_path / "step-2" / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-1] + b"x")
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "MANIFEST").write_bytes(b"rrck 2 " + b"0" * 32 + b" 1\n1")
    for name, said in (("of something else", b"include *.py\n"), ("of a package", b"")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "MANIFEST").write_bytes(said)
    assert faults(tmp_path) == {"step-1": "", "step-2": "its manifest is damaged", "later": "its manifest is damaged"}
    assert agreed(tmp_path) == "step-1"


@pytest.mark.parametrize("said", [b"", bytes(300), b"hi"], ids=["empty", "zeros", "something else"])
def test_a_manifest_that_a_power_loss_left_empty_is_damaged_and_no_job_begins_anew_beside_it(
    tmp_path: Path, said: bytes
) -> None:
    for name, step in (("step-1", 1), ("step-2", 2), ("best", None)):
        make_checkpoint([tmp_path / name], {"x": b"x"}, step=step)
    for name in ("step-2", "best"):
        (tmp_path / name / "MANIFEST").write_bytes(said)
    assert faults(tmp_path) == {"step-1": "", "step-2": "its manifest is damaged", "best": "its manifest is damaged"}
    assert agreed(tmp_path) == "step-1"
    (tmp_path / "step-1" / "MANIFEST").write_bytes(said)
    assert set(faults(tmp_path).values()) == {"its manifest is damaged"}
    assert agreed(tmp_path) is None


def test_one_that_may_not_be_read_is_there_if_it_is_named_as_a_checkpoint_is(tmp_path: Path) -> None:
    for name in ("step-1", "step-2", "lost+found"):
        make_checkpoint([tmp_path / name], {}, step=int(name[-1]) if name[-1].isdigit() else None)
    for name in ("step-2", "lost+found"):
        os.chmod(tmp_path / name / "MANIFEST", 0)
    as_any_user = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"] if os.geteuid() == 0 else []
    said = subprocess.run(
        [*as_any_user, sys.executable, "-c", LOOK, str(tmp_path)],
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip
    assert said == "step-1 None\nstep-2 its manifest may not be read: Permission denied\n"


LOOK = """
import sys
from robust_run.ckpt_io.newest import look
for seen in sorted(look(sys.argv[1], whole=0).seen, key=lambda each: each.name):
    print(seen.name, seen.fault)
"""


@pytest.mark.parametrize("step", [-1, 1 << 62])
def test_numbers_that_no_checkpoint_has_are_damage(tmp_path: Path, step: int) -> None:
    body = msgspec.json.encode(
        {"version": 1, "uuid": "0" * 32, "created_s": 1.0, "step": step, "targets": ["."], "files": []}
    )
    (tmp_path / "bad").mkdir()
    head = b"rrck 1 %s %d\n" % (xxhash.xxh3_128_hexdigest(body).encode(), len(body))
    (tmp_path / "bad" / "MANIFEST").write_bytes(head + body)
    assert faults(tmp_path) == {"bad": "its manifest is damaged"}


def test_a_folder_that_is_not_there_is_empty_and_one_that_cannot_be_read_is_trouble(tmp_path: Path) -> None:
    nothing = look(str(tmp_path / "nowhere"))
    assert (nothing.seen, nothing.trouble) == ((), "")
    (tmp_path / "file").write_text("")
    trouble = look(str(tmp_path / "file"))
    assert "cannot be listed: Not a directory" in trouble.trouble and not trouble.may_pass
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert look(str(tmp_path / "loop")).trouble


def test_names_that_are_no_text_and_pipes_harm_nobody(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "good"], {}, step=1)
    made = make_checkpoint([tmp_path / "odd"], {}, step=2)
    os.rename(os.fsencode(tmp_path / "odd"), os.fsencode(tmp_path) + b"/odd-\xff")
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "MANIFEST")
    seen = look(str(tmp_path)).seen
    assert made.uuid not in {each.uuid for each in seen}
    assert {(each.name, each.fault) for each in seen} == {("good", ""), ("odd-\\udcff", "its name is no text")}
    msgspec.msgpack.encode(seen)


def test_what_is_known_is_not_read_again_until_it_changes(tmp_path: Path) -> None:
    known: Known = {}
    make_checkpoint([tmp_path / "step-1"], {}, step=1)
    first = look(str(tmp_path), known=known)
    path = str(tmp_path / "step-1" / "MANIFEST")
    mark, seen = known[path]
    known[path] = (mark, msgspec.structs.replace(seen, step=7))
    assert look(str(tmp_path), known=known).seen[0].step == 7
    make_checkpoint([tmp_path / "step-1"], {}, step=2)
    assert look(str(tmp_path), known=known).seen[0].step == 2
    shutil.rmtree(tmp_path / "step-1")
    assert look(str(tmp_path), known=known).seen == () and known == {}
    assert isinstance(first.seen[0], SeenCheckpoint)


def test_latest_passes_over_a_manifest_that_contradicts_itself(tmp_path: Path) -> None:
    make_checkpoint([tmp_path / "step-1"], {"x": b"1"}, step=1)
    body = msgspec.json.encode(
        {"version": 1, "uuid": "0" * 32, "created_s": 1.0, "step": 9, "targets": ["."], "files": [], "x": 1}
    )
    (tmp_path / "step-9").mkdir()
    head = b"rrck 1 %s %d\n" % (xxhash.xxh3_128_hexdigest(body).encode(), len(body))
    (tmp_path / "step-9" / "MANIFEST").write_bytes(head + body)
    found = latest(str(tmp_path))
    assert found is not None and found.name == "step-1"
