"""The newest valid checkpoint is found whatever lies around it, and is never removed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saved_checkpoints import contents, held_by, save

from robust_run.ckpt_io.catalog import latest, list_checkpoints, prune
from robust_run.ckpt_io.retention import Found, Leftover, newest, plan_removals
from robust_run.ckpt_io.saving import Piece, begin_save, commit, write_file


def unfinished(url: str, also: list[str] | None = None) -> None:
    """A save that died before its commit."""
    plan = begin_save(url, also or [])
    write_file(plan, 0, "f", [Piece(0, memoryview(bytes(100)))], 100)


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

    from robust_run.ckpt_io.manifest import decode, encode

    save(f"{tmp_path}/theirs/ck", contents(1), step=1)
    save(f"{tmp_path}/mine/old", contents(2), step=1)
    save(f"{tmp_path}/mine/new", contents(3), step=2)
    place = tmp_path / "mine/old/MANIFEST"
    theirs = decode((tmp_path / "theirs/ck/MANIFEST").read_bytes())
    crafted = msgspec.structs.replace(
        decode(place.read_bytes()), uuid=theirs.uuid, targets=(".", f"{tmp_path}/theirs/ck")
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


def held_by_copy(tmp_path: Path) -> dict[str, bytes]:
    from robust_run.ckpt_io.reading import open_checkpoint

    with open_checkpoint(f"{tmp_path}/a/ck", also=[f"{tmp_path}/b"]) as opened:
        return {
            file.name: opened.read_bytes(index, 0, file.size_bytes) for index, file in enumerate(opened.manifest.files)
        }


# The rules alone

founds = st.lists(
    st.builds(
        Found,
        name=st.text("abc", min_size=1, max_size=3),
        url=st.just("/x"),
        state=st.sampled_from(["valid", "damaged manifest", "unfinished"]),
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
def test_the_rules_of_retention(found: list[Found], keep: int, keep_every: int | None, grace_s: float) -> None:
    removals = plan_removals(found, keep=keep, keep_every=keep_every, grace_s=grace_s, now_s=100.0)
    valid = {checkpoint.name: checkpoint for checkpoint in found if checkpoint.state == "valid"}
    gone = {removal.name for removal in removals if removal.leftover is None}
    assert gone <= valid.keys()
    kept = valid.keys() - gone
    assert len(kept) >= min(keep, len(valid))
    best = newest(found)
    assert (best is None) == (not valid) and (best is None or best.name in kept)
    for name in gone:
        step = valid[name].step
        assert keep_every is None or step is None or step % keep_every
        assert sum((other.step or -1) >= (step or -1) for other in valid.values()) > 1
    for removal in removals:
        if removal.leftover is not None:
            assert removal.leftover.modified_s is not None and 100.0 - removal.leftover.modified_s > grace_s


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"keep_every": 0}, {"grace_s": -1.0}])
def test_numbers_that_would_remove_everything_are_refused(wrong: dict[str, float]) -> None:
    numbers = {"keep": 1, "keep_every": None, "grace_s": 0.0, "now_s": 0.0, **wrong}
    with pytest.raises(ValueError, match="must be"):
        plan_removals([], **numbers)  # type: ignore[arg-type]


def test_a_commit_after_its_leftovers_were_pruned_is_refused_not_half_done(tmp_path: Path) -> None:
    plan = begin_save(f"{tmp_path}/ck")
    file = write_file(plan, 0, "f", [Piece(0, memoryview(b"abc"))], 3)
    prune(str(tmp_path), grace_s=0, now_s=lambda: 4e9)
    with pytest.raises(Exception, match="not committed"):
        commit(plan, [file])
    assert latest(str(tmp_path)) is None
