"""--ckpt-keep removes what robust_run.checkpoint wrote under it, is whole, and is not wanted any more; nothing else."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.ckpt_io import catalog
from robust_run.ckpt_io.rules.keeping import MARK, KeepNewest, mark_of, plan
from robust_run.ckpt_io.rules.retention import RootEntry
from robust_run.ckpt_io.saving import FilePiece, begin_save, commit, write_file

RULE = KeepNewest(most=2, session="me", began_step=0)
BEFORE = KeepNewest(most=2, session="earlier")


def entry(at: int, rule: KeepNewest | None = RULE, **more: object) -> RootEntry:
    found = RootEntry(
        f"step-{at}",
        f"/ckpt/step-{at}",
        "valid",
        step=at,
        created_s=float(at),
        uuid=f"u{at}",
        mark=mark_of(rule)[MARK] if rule is not None else "",
    )
    return replace(found, **more)  # type: ignore[arg-type]


def gone(found: list[RootEntry], **rule: object) -> list[str]:
    return [each.name for each in plan(found, msgspec.structs.replace(RULE, **rule))]


def test_the_newest_so_many_stay_and_the_oldest_goes_first() -> None:
    assert gone([entry(step) for step in (40, 10, 30, 20)]) == ["step-10", "step-20"]
    assert gone([entry(10), entry(20)]) == []


@pytest.mark.parametrize(
    "other",
    [
        entry(10, None),
        entry(10, name="best"),
        entry(10, name="step-10.tmp", state="temporary"),
        entry(10, state="damaged parts"),
        entry(10, state="damaged manifest", mark="", step=None),
        entry(10, state="unfinished", mark="", step=None),
        entry(10, is_link=True),
        entry(10, mark="somebody else"),
    ],
    ids=["a program's own", "renamed", "temporary", "no parts", "manifest damaged", "unfinished", "a link", "another's mark"],
)  # fmt: skip
def test_what_is_not_ours_or_not_whole_neither_goes_nor_counts(other: RootEntry) -> None:
    assert gone([other, entry(20), entry(30)]) == []
    newer = replace(other, step=99 if other.step else None, name=other.name.replace("10", "99"), uuid="u99")
    assert gone([newer, entry(20), entry(30)]) == []
    assert gone([newer, entry(10), entry(20), entry(30)]) == ["step-10"]


def test_what_an_earlier_start_of_the_program_wrote_goes_as_far_as_this_one_began_from_it() -> None:
    found = [entry(10, BEFORE), entry(20, BEFORE), entry(30, BEFORE), entry(40)]
    assert gone(found, began_step=30) == ["step-10", "step-20"]


def test_what_is_newer_than_what_this_one_began_from_was_passed_over_so_it_neither_goes_nor_counts() -> None:
    """Somebody found it damaged, or the loss had become NaN: the older ones are all that is left."""
    found = [entry(10, BEFORE), entry(20, BEFORE), entry(30, BEFORE), entry(40, BEFORE), entry(21)]
    assert gone(found, began_step=20) == ["step-10"]
    assert gone(found[:-1], began_step=20) == [], "two are usable"


def test_a_program_that_began_anew_leaves_what_was_there_alone() -> None:
    """It may not call load, or load from elsewhere. Its own are older by their steps."""
    found = [entry(1000, BEFORE), entry(1001, BEFORE), entry(1002, BEFORE), entry(1), entry(2), entry(3)]
    assert gone(found) == ["step-1"]


def test_damaged_ones_do_not_count_so_older_good_ones_stay() -> None:
    found = [entry(10, BEFORE), entry(20, BEFORE), entry(30, BEFORE), entry(40)]
    assert gone(found, began_step=30, leave=("u30", "step-20")) == []
    assert gone(found, began_step=30, leave=("u30",)) == ["step-10"]


def test_what_the_job_started_from_stays() -> None:
    found = [entry(10, BEFORE), *(entry(step) for step in (20, 30, 40))]
    assert gone(found, began_step=10, leave=("step-10",)) == ["step-20"]


def test_one_that_was_written_again_under_a_damaged_one_s_name_counts() -> None:
    found = [entry(10), entry(20), entry(30)]
    assert gone(found, leave=("step-30",)) == ["step-10"]


def test_what_somebody_has_linked_to_stays() -> None:
    found = [*(entry(step) for step in (10, 20, 30, 40)), entry(10, name="best", is_link=True)]
    assert gone(found) == ["step-20"]


def test_of_each_version_of_the_job_s_code_the_newest_stays_for_it_may_be_rolled_back() -> None:
    found = [entry(step, BEFORE, written_by=f"job 1{more}") for step, more in ((10, ""), (20, "-44"))]
    found += [entry(step, BEFORE, written_by="other 1") for step in (11, 21)]
    found += [entry(30, written_by="job 2"), entry(40, written_by="job 2-0dfc173bba")]
    assert gone(found, began_step=25, job="job") == ["step-10", "step-11", "step-21"]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.booleans()), unique_by=lambda each: each[0]),
    st.integers(1, 4),
    st.integers(0, 20),
)
def test_the_newest_of_those_that_count_always_stay(
    steps: list[tuple[int, bool, bool]], most: int, began_step: int
) -> None:
    found = [entry(step, RULE if is_mine else BEFORE) for step, is_mine, _ in steps]
    leave = tuple(f"u{step}" for step, _, is_left in steps if is_left)
    removed = gone(found, most=most, began_step=began_step, leave=leave)
    usable = sorted(
        step for step, is_mine, is_left in steps if is_mine or (step <= began_step and not is_left)
    )  # fmt: skip
    assert removed == [f"step-{step}" for step in usable[: max(0, len(usable) - most)]]


# --- a real folder


def save(root: Path, step: int, rule: KeepNewest | None = RULE, name: str = "") -> None:
    plan_ = begin_save(str(root / (name or f"step-{step}")), durable=False)
    file = write_file(plan_, 0, "data", [FilePiece(0, memoryview(b"x" * 100))], 100)
    commit(plan_, [file], step=step, facts=mark_of(rule) if rule is not None else {}, env={})


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def test_a_folder_keeps_what_it_should_and_nothing_is_left_of_the_rest(tmp_path: Path) -> None:
    for step in range(10, 60, 10):
        save(tmp_path, step)
    save(tmp_path, 5, None)
    save(tmp_path, 10, name="best")
    os.symlink("step-20", tmp_path / "good")
    (tmp_path / "step-30" / "notes.txt").write_text("of a person")
    (tmp_path / "log.txt").write_text("")
    gone = catalog.keep_newest(str(tmp_path), RULE)
    assert [each.name for each in gone] == ["step-10", "step-30"]
    assert names(tmp_path) == ["best", "good", "log.txt", "step-20", "step-30", "step-40", "step-5", "step-50"]
    assert names(tmp_path / "step-30") == ["notes.txt"]
    assert catalog.keep_newest(str(tmp_path), RULE) == []


def test_one_whose_parts_are_missing_stays_and_an_older_one_counts_in_its_place(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    (parts,) = (tmp_path / "step-40").glob("parts-*")
    shutil.rmtree(parts)
    assert [each.name for each in catalog.keep_newest(str(tmp_path), RULE)] == ["step-10"]
    assert names(tmp_path) == ["step-20", "step-30", "step-40"]


def test_nothing_more_is_begun_once_it_is_called_off(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        save(tmp_path, step)
    asked = iter((True, False))
    assert [each.name for each in catalog.keep_newest(str(tmp_path), RULE, goes_on=lambda: next(asked))] == ["step-10"]
    assert names(tmp_path) == ["step-20", "step-30", "step-40", "step-50"]


def test_one_that_was_saved_anew_meanwhile_stays(tmp_path: Path) -> None:
    """What was listed is not what is there now."""
    for step in (10, 20, 30):
        save(tmp_path, step)

    def goes_on() -> bool:
        save(tmp_path, 10)
        return True

    catalog.keep_newest(str(tmp_path), RULE, goes_on=goes_on)
    assert names(tmp_path) == ["step-10", "step-20", "step-30"]
    assert all(each.state == "valid" for each in catalog.list_checkpoints(str(tmp_path)))


def test_a_folder_in_memory_of_another_kind_of_store_is_kept_alike() -> None:
    root = "memory://kept/ckpt"
    for step in (10, 20, 30):
        plan_ = begin_save(f"{root}/step-{step}", durable=False)
        file = write_file(plan_, 0, "data", [FilePiece(0, memoryview(b"x" * 100))], 100)
        commit(plan_, [file], step=step, facts=mark_of(RULE), env={})
    assert [each.name for each in catalog.keep_newest(root, RULE)] == ["step-10"]
    assert [each.name for each in catalog.list_checkpoints(root)] == ["step-20", "step-30"]
