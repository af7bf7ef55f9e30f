"""The newest valid checkpoint is found whatever lies around it, and is never removed."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_checkpoints import MIB, Faults, Operation, contents, held_by, save

from robust_run.ckpt_io.briefly import _part_bytes
from robust_run.ckpt_io.catalog import latest, list_checkpoints, prune
from robust_run.ckpt_io.errors import TargetLost
from robust_run.ckpt_io.newest import newest_path
from robust_run.ckpt_io.rules.layout import FileLayout, pack_lengths, unit_size
from robust_run.ckpt_io.rules.retention import Leftover, RootEntry, newest, plan_removals
from robust_run.ckpt_io.rules.types import Codec, LogicalFile
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, write_file
from robust_run.store.errors import Unavailable


def unfinished(url: str, also: list[str] | None = None) -> None:
    """A save that died before its commit."""
    plan = begin_save(url, also or [])
    write_file(plan, 0, "f", [FilePiece(0, memoryview(bytes(100)))], 100)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four checkpoints, one of them damaged, a save that died, and what is none of ours."""
    root = tmp_path / "run"
    for step in (10, 20, 30, 40):
        save(f"{root}/step-{step}", contents(step, files=1, size_bytes=100), step=step, created_s=1e9 + step)
    manifest = root / "step-40" / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-1])
    unfinished(f"{root}/step-50")
    (root / "logs").mkdir()
    (root / "file").write_text("x")
    return root


def test_the_catalog_tells_what_is_what(root: Path) -> None:
    found = {checkpoint.name: checkpoint for checkpoint in list_checkpoints(str(root))}
    assert {name: checkpoint.state for name, checkpoint in found.items()} == {
        "step-10": "valid",
        "step-20": "valid",
        "step-30": "valid",
        "step-40": "damaged manifest",
        "step-50": "unfinished",
    }
    assert (found["step-30"].step, found["step-30"].size_bytes) == (30, 100)
    assert found["step-30"].created_s == 1e9 + 30


def test_the_newest_valid_one_is_the_latest(root: Path) -> None:
    found = latest(str(root))
    assert found is not None and found.name == "step-30" and found.url == f"{root}/step-30"
    assert latest(f"{root}/logs") is None and latest(f"{root}/nothing") is None


def test_pruning_removes_the_old_and_the_dead(root: Path) -> None:
    planned = prune(str(root), keep=1, keep_every=20, grace_s=0, dry_run=True, now_s=lambda: 4e9)
    assert {removal.name for removal in planned} == {"step-10", "step-50"}
    assert (root / "step-10").exists()
    assert prune(str(root), keep=1, keep_every=20, grace_s=0, now_s=lambda: 4e9) == planned
    assert sorted(path.name for path in root.iterdir()) == ["file", "logs", "step-20", "step-30", "step-40"]


@pytest.mark.parametrize("name", ["step-50.pt.tmp", "step-50.tmp.4711", "step-50.part", "tmp-step-50", "tmpab12cd_9"])
def test_what_was_to_be_renamed_is_no_checkpoint(root: Path, name: str) -> None:
    save(f"{root}/{name}", contents(5, files=1, size_bytes=100), step=50, created_s=1e9 + 25)
    found = {checkpoint.name: checkpoint for checkpoint in list_checkpoints(str(root))}
    assert found[name].state == "temporary" and "until it is renamed" in found[name].reason
    newest = latest(str(root))
    assert newest is not None and newest.name == "step-30" and newest_path(str(root)) == f"{root}/step-30"
    assert all(removal.name != name for removal in prune(str(root), keep=9, grace_s=1e9, now_s=lambda: 1e9 + 100))
    assert (root / name).exists()
    removed = prune(str(root), keep=1, grace_s=0, now_s=lambda: 4e9)
    assert {removal.name for removal in removed} == {"step-10", "step-20", "step-50", name}
    assert not (root / name).exists()


def test_the_only_whole_one_is_not_removed_for_its_name(tmp_path: Path) -> None:
    """Its writer died before it renamed it, and nothing newer is there: somebody may want it."""
    save(f"{tmp_path}/step-1", contents(5), step=1, created_s=1e9)
    save(f"{tmp_path}/step-2.tmp", contents(5), step=2, created_s=1e9 + 1)
    assert prune(str(tmp_path), keep=1, grace_s=0, now_s=lambda: 4e9) == []


@pytest.mark.parametrize(
    "name", ["step-50", "model.pt", "best", "run_temp_0.7", "part-1", "template.pt", "step-5.partial.pt", "x.tmpl"]
)
def test_names_that_only_look_like_temporary_ones(tmp_path: Path, name: str) -> None:
    save(f"{tmp_path}/{name}", contents(5), step=2)
    newest = latest(str(tmp_path))
    assert newest is not None and newest.name == name and newest_path(str(tmp_path)) == f"{tmp_path}/{name}"


def test_a_save_under_way_is_left_alone(root: Path) -> None:
    assert prune(str(root), keep=9) == []
    assert (root / "step-50").exists()


def test_what_a_dead_save_left_beside_a_checkpoint_and_on_other_targets_goes(tmp_path: Path) -> None:
    also = [f"{tmp_path}/b"]
    held = contents(1)
    save(f"{tmp_path}/a/ck", held, also)
    unfinished(f"{tmp_path}/a/ck", also)
    unfinished(f"{tmp_path}/a/new", also)
    shutil.rmtree(tmp_path / "a/new")
    prune(f"{tmp_path}/a", also=also, grace_s=0, now_s=lambda: 4e9)
    assert held_by(f"{tmp_path}/a/ck") == held
    assert (
        sorted(path.name for path in tmp_path.rglob("*") if path.name.startswith("parts-"))
        == [f"parts-{list_checkpoints(f'{tmp_path}/a')[0].uuid}"] * 2
    )
    assert not (tmp_path / "b/new").exists()


def test_pruning_follows_a_checkpoint_to_all_its_targets(tmp_path: Path) -> None:
    for step in (1, 2):
        save(f"{tmp_path}/a/{step}", contents(step), [f"{tmp_path}/b", f"{tmp_path}/c"], step=step)
    prune(f"{tmp_path}/a", keep=1)
    left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.part") if path.parents[1].name == "1"]
    assert left == []
    assert held_by(f"{tmp_path}/a/2") == contents(2)


def test_a_manifest_cannot_have_another_checkpoints_parts_removed(tmp_path: Path) -> None:
    """One that names somebody else's folder as a target of its own."""
    import msgspec

    from robust_run.ckpt_io.rules.manifest import decode, encode

    save(f"{tmp_path}/theirs/ck", contents(1), step=1)
    save(f"{tmp_path}/mine/old", contents(2), step=1)
    save(f"{tmp_path}/mine/new", contents(3), step=2)
    place = tmp_path / "mine/old/MANIFEST"
    theirs = decode((tmp_path / "theirs/ck/MANIFEST").read_bytes())
    crafted = msgspec.structs.replace(
        decode(place.read_bytes()), uuid=theirs.uuid, targets=(".", f"{tmp_path}/theirs/ck"), files=()
    )
    place.write_bytes(encode(crafted))
    with pytest.raises(Exception, match="does not hold this checkpoint"):
        prune(f"{tmp_path}/mine", keep=1)
    assert held_by(f"{tmp_path}/theirs/ck") == contents(1)


def test_a_copy_without_its_manifest_is_kept_for_repair(tmp_path: Path) -> None:
    also = [f"{tmp_path}/b"]
    save(f"{tmp_path}/a/ck", contents(1), also)
    (tmp_path / "a/ck/MANIFEST").unlink()
    (found,) = list_checkpoints(f"{tmp_path}/a", also)
    assert found.state == "damaged manifest"
    assert prune(f"{tmp_path}/a", also=also, grace_s=0, now_s=lambda: 4e9) == []
    assert held_by_copy(tmp_path) == contents(1)


# Links


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Two checkpoints, a link to the newer one, and one to a checkpoint that lies outside."""
    root = tmp_path / "run"
    for step in (1, 2):
        save(f"{root}/step-{step}", contents(step, size_bytes=100), step=step, created_s=1e9 + step)
    save(f"{tmp_path}/elsewhere/step-0", contents(9, size_bytes=100), step=0)
    (root / "latest").symlink_to("step-2")
    (root / "base").symlink_to(tmp_path / "elsewhere" / "step-0")
    return root


def test_links_are_shown_and_what_they_lead_to_is_found_under_its_own_name(linked: Path) -> None:
    found = {checkpoint.name: checkpoint.is_link for checkpoint in list_checkpoints(str(linked))}
    assert found == {"step-1": False, "step-2": False, "latest": True, "base": True}
    (linked / "zz").symlink_to("step-2")
    newest_one = latest(str(linked))
    assert newest_one is not None and newest_one.name == "step-2"
    assert newest_path(str(linked)) == f"{linked}/step-2"


def test_links_do_not_count_and_nothing_behind_them_is_removed(linked: Path, tmp_path: Path) -> None:
    unfinished(f"{tmp_path}/elsewhere/step-0")
    assert prune(str(linked), keep=2, grace_s=0, now_s=lambda: 4e9) == []
    assert [removal.name for removal in prune(str(linked), keep=1, grace_s=0, now_s=lambda: 4e9)] == ["step-1"]
    assert held_by(f"{linked}/step-2") == held_by(f"{linked}/latest") == contents(2, size_bytes=100)
    assert held_by(f"{tmp_path}/elsewhere/step-0") == contents(9, size_bytes=100)
    assert len(list((tmp_path / "elsewhere/step-0").glob("parts-*"))) == 2


def test_a_folder_that_becomes_a_link_before_it_is_removed_is_not(tmp_path: Path) -> None:
    for step in (1, 2):
        save(f"{tmp_path}/run/{step}", contents(step, size_bytes=100), step=step)

    def now_s() -> float:
        (tmp_path / "run/1").rename(tmp_path / "moved")
        (tmp_path / "run/1").symlink_to(tmp_path / "moved")
        return 4e9

    with pytest.raises(TargetLost, match="a symbolic link: not removed"):
        prune(f"{tmp_path}/run", keep=1, now_s=now_s)
    assert held_by(f"{tmp_path}/moved") == contents(1, size_bytes=100)


def test_links_in_the_place_of_parts_are_not_followed(tmp_path: Path) -> None:
    save(f"{tmp_path}/run/ck", contents(1, size_bytes=100))
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "f").write_bytes(b"keep")
    (tmp_path / "run/ck" / f"parts-{'0' * 32}").symlink_to(tmp_path / "precious")
    assert prune(f"{tmp_path}/run", grace_s=0, now_s=lambda: 4e9) == []
    assert (tmp_path / "precious" / "f").read_bytes() == b"keep"


# Parts that are gone


def gone(folder: Path) -> None:
    for parts in folder.glob("parts-*"):
        shutil.rmtree(parts)


def cut(folder: Path) -> None:
    part = next(folder.rglob("*.part"))
    part.write_bytes(part.read_bytes()[:-1])


@pytest.mark.parametrize("codec", ["none", "zstd_shuffle"])
@pytest.mark.parametrize("damage", [gone, cut])
def test_without_all_its_parts_it_is_neither_the_latest_nor_counted_nor_removed(
    tmp_path: Path, damage: Callable[[Path], None], codec: Codec
) -> None:
    for step in (1, 2, 3):
        save(f"{tmp_path}/step-{step}", contents(step), step=step, codec=codec)
    damage(tmp_path / "step-3")
    found = {checkpoint.name: checkpoint for checkpoint in list_checkpoints(str(tmp_path))}
    assert {name: each.state for name, each in found.items()} == {
        "step-1": "valid",
        "step-2": "valid",
        "step-3": "damaged parts",
    }
    assert "part parts-" in found["step-3"].reason and "should have" in found["step-3"].reason
    assert newest_path(str(tmp_path)) == f"{tmp_path}/step-2"
    assert [removal.name for removal in prune(str(tmp_path), keep=1)] == ["step-1"]
    assert held_by(f"{tmp_path}/step-2") == contents(2)
    assert (tmp_path / "step-3" / "MANIFEST").exists()


def test_parts_are_looked_for_on_all_targets_that_answer(tmp_path: Path) -> None:
    also = [f"{tmp_path}/b", f"{tmp_path}/c"]
    for step in (1, 2):
        save(f"{tmp_path}/a/{step}", contents(step), also, step=step)
    assert [each.state for each in list_checkpoints(f"{tmp_path}/a")] == ["valid", "valid"]
    asked = []

    def silent(operation: Operation) -> None:
        if operation.url.startswith(f"{tmp_path}/c"):
            asked.append(operation)
            raise Unavailable(operation.url, operation.path, "connection refused")

    assert [each.state for each in list_checkpoints(f"{tmp_path}/a", stores=Faults(silent))] == ["valid", "valid"]
    assert len(asked) == 1, "a target that does not answer is asked once"
    shutil.rmtree(tmp_path / "c/2")
    (whole, broken) = list_checkpoints(f"{tmp_path}/a")
    assert (whole.state, broken.state) == ("valid", "damaged parts")
    assert f"{tmp_path}/c/2" in broken.reason


@given(
    st.integers(0, 9 * MIB),
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.integers(1, MIB - 1), min_size=9, max_size=9) | st.none(),
)
def test_the_launcher_reckons_lengths_of_parts_as_the_format_does(
    size_bytes: int, targets: int, first: int, lengths: list[int] | None
) -> None:
    units = -(-size_bytes // MIB)
    stored = ""
    if lengths is not None:
        stored = pack_lengths(
            [min(length, unit_size(size_bytes, MIB, unit) - 1) for unit, length in enumerate(lengths[:units])]
        )
        if size_bytes % MIB == 1:
            return  # one byte cannot be stored in fewer
    file = LogicalFile(
        name="f",
        size_bytes=size_bytes,
        unit_bytes=MIB,
        first_target=first % targets,
        codec="none" if lengths is None else "lz4",
        digests=base64.b64encode(bytes(16 * units)).decode(),
        stored=stored,
    )
    layout = FileLayout("0" * 32, 0, file, targets)
    for target in range(targets):
        assert _part_bytes(file, target, targets) == layout.part_bytes(target)


def held_by_copy(tmp_path: Path) -> dict[str, bytes]:
    from robust_run.ckpt_io.reading import open_checkpoint

    with open_checkpoint(f"{tmp_path}/a/ck", also=[f"{tmp_path}/b"]) as opened:
        return {
            file.name: opened.read_bytes(index, 0, file.size_bytes) for index, file in enumerate(opened.manifest.files)
        }


# The rules alone

founds = st.lists(
    st.builds(
        RootEntry,
        name=st.text("abc", min_size=1, max_size=3),
        url=st.just("/x"),
        state=st.sampled_from(["valid", "temporary", "damaged manifest", "damaged parts", "unfinished"]),
        is_link=st.booleans(),
        step=st.none() | st.integers(0, 9),
        created_s=st.floats(0, 100),
        leftovers=st.lists(
            st.builds(Leftover, target=st.just(0), path=st.just("parts-x"), modified_s=st.none() | st.floats(0, 100)),
            max_size=2,
        ).map(tuple),
    ),
    max_size=8,
    unique_by=lambda found: found.name,
)


@given(founds, st.integers(1, 4), st.none() | st.integers(1, 4), st.floats(0, 50))
def test_the_rules_of_retention(found: list[RootEntry], keep: int, keep_every: int | None, grace_s: float) -> None:
    removals = plan_removals(found, keep=keep, keep_every=keep_every, grace_s=grace_s, now_s=100.0)
    valid = {checkpoint.name: checkpoint for checkpoint in found if checkpoint.state == "valid"}
    temporary = {each.name: each for each in found if each.state == "temporary" and not each.is_link}
    dead = {removal.name for removal in removals if removal.leftover is None and removal.name in temporary}
    for name in dead:
        made_s = temporary[name].created_s or 0.0
        assert 100.0 - made_s > grace_s
        assert any((each.created_s or 0.0) > made_s for each in valid.values() if not each.is_link)
    gone = {removal.name for removal in removals if removal.leftover is None} - dead
    own = {name for name, checkpoint in valid.items() if not checkpoint.is_link}
    assert gone <= own
    kept = valid.keys() - gone
    assert len(own - gone) >= min(keep, len(own))
    best = newest(found)
    assert (best is None) == (not valid) and (best is None or best.name in kept)
    for name in gone:
        step = valid[name].step
        assert keep_every is None or step is None or step % keep_every
        assert sum((other.step or -1) >= (step or -1) for other in valid.values()) > 1
    mine = {checkpoint.name for checkpoint in found if not checkpoint.is_link}
    for removal in removals:
        assert removal.name in mine
        if removal.leftover is not None:
            assert removal.leftover.modified_s is not None and 100.0 - removal.leftover.modified_s > grace_s


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"keep_every": 0}, {"grace_s": -1.0}])
def test_numbers_that_would_remove_everything_are_refused(wrong: dict[str, float]) -> None:
    numbers = {"keep": 1, "keep_every": None, "grace_s": 0.0, "now_s": 0.0, **wrong}
    with pytest.raises(ValueError, match="must be"):
        plan_removals([], **numbers)  # type: ignore[arg-type]


def test_a_commit_after_its_leftovers_were_pruned_is_refused_not_half_done(tmp_path: Path) -> None:
    plan = begin_save(f"{tmp_path}/ck")
    file = write_file(plan, 0, "f", [FilePiece(0, memoryview(b"abc"))], 3)
    prune(str(tmp_path), grace_s=0, now_s=lambda: 4e9)
    with pytest.raises(Exception, match="not committed"):
        commit(plan, [file])
    assert latest(str(tmp_path)) is None
