"""How a version of a role is found in the ledger of a member's launcher."""

from __future__ import annotations

from pathlib import Path

from robust_run.launcher.core import code_ledger
from robust_run.launcher.model.code_events import CodeVersion, Ledger
from robust_run.orchestrator.updates.shelf import Shelf
from robust_run.orchestrator.updates.stager import fate_of, found_in

FIRST = CodeVersion(number=1, tree="a")
OF_ROLE = CodeVersion(number=5, tree="b", summary="x.py +1")


def ledger(*summaries: str) -> Ledger:
    """Return one with the first version, and others that were staged."""
    found = code_ledger.captured(Ledger(), FIRST, 0)
    for number, summary in enumerate(summaries, 2):
        version = CodeVersion(number=number, tree="b", summary=summary, parents=(number - 1,), again=True)
        found = code_ledger.staged(found, version, 0.0)
    return found


def test_by_its_name_first_and_else_by_what_it_holds() -> None:
    named = found_in(ledger("x.py +1", "version 5 of rollout: x.py +1"), "rollout", OF_ROLE)
    assert named is not None and named.version.number == 3
    same = found_in(ledger("x.py +1"), "rollout", OF_ROLE)
    assert same is not None and same.version.number == 2
    assert found_in(ledger(), "rollout", OF_ROLE) is None
    assert found_in(ledger("version 55 of rollout: y"), "rollout", CodeVersion(number=5, tree="c")) is None


def test_the_same_that_was_rolled_back_under_another_name_is_not_it() -> None:
    before = code_ledger.rolled_back(code_ledger.begun(ledger("by hand"), 1), "it failed")
    assert found_in(before, "rollout", OF_ROLE) is None


def test_what_became_of_it() -> None:
    staged = ledger("version 5 of rollout: x")
    assert fate_of(staged, staged.records[1]) == "pending"
    begun = code_ledger.begun(staged, 1)
    assert fate_of(begun, begun.records[1]) == "probation"
    assert fate_of(begun, begun.records[0]) == "", "it was trusted, and does not run"
    back = code_ledger.rolled_back(begun, "why")
    assert (fate_of(back, back.records[1]), fate_of(back, back.records[0])) == ("rolled_back", "trusted")


def test_members_share_what_is_kept_and_to_delete_one_deletes_nothing_of_another_s(tmp_path: Path) -> None:
    import shutil

    shelf = Shelf(str(tmp_path))
    for name in ("rollout-0.1", "rollout-1.1", "rollout-0.1"):  # an order may come twice
        shelf.prepare(str(tmp_path / "members" / name), "rollout", None)
    digest = shelf.store.put(b"A = 1\n")
    other = tmp_path / "members" / "rollout-1.1" / "code" / "objects" / digest[:2] / digest[2:]
    assert other.read_bytes() == b"A = 1\n"
    shutil.rmtree(tmp_path / "members" / "rollout-0.1")
    assert other.read_bytes() == b"A = 1\n"
    shelf.prepare(str(tmp_path / "members" / "rollout-2.1"), "rollout", FIRST)
    assert (tmp_path / "members" / "rollout-2.1" / "code" / "start.json").stat().st_mode & 0o777 == 0o600
