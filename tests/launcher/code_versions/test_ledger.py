"""Which version runs, which is suspect, which is trusted: each rule as a short story."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from robust_run.launcher.core import code_ledger as rules
from robust_run.launcher.core import ledger_queries as queries
from robust_run.launcher.model.code_events import CodeVersion, Ledger


def version(number: int, *parents: int, tree: str = "", source: str = "h:/a", **more: object) -> CodeVersion:
    return CodeVersion(number=number, tree=tree or f"tree {number}", parents=parents, source=source, **more)  # type: ignore[arg-type]


def started() -> Ledger:
    return rules.captured(Ledger(), version(1), 0)


def fates(ledger: Ledger) -> list[str]:
    return [record.fate for record in ledger.records]


def survived(
    ledger: Ledger, step_s: float = 0.1, nodes: tuple[str, ...] = ("n",), steps: int = 20
) -> tuple[Ledger, str]:
    words = ""
    for node in nodes:
        ledger, words = rules.survived(ledger, node, steps, step_s, nodes)
    return ledger, words


def test_the_first_version_is_trusted_and_a_second_capture_changes_nothing() -> None:
    ledger = started()
    assert (fates(ledger), ledger.running, queries.head(ledger)) == (["trusted"], 1, 1)
    assert rules.captured(ledger, version(1, tree="other"), 3) is ledger


def test_an_update_waits_runs_and_is_trusted() -> None:
    ledger = rules.staged(started(), version(2, 1), 99.0)
    assert (fates(ledger), ledger.running, ledger.pending, ledger.due_unix_s) == (["trusted", "pending"], 1, 2, 99.0)
    ledger = rules.begun(ledger, 4)
    assert (fates(ledger), ledger.running, ledger.pending, ledger.due_unix_s) == (["trusted", "probation"], 2, 0, 0)
    use = queries.use(ledger)
    assert use is not None
    assert (use.number, use.tree, use.on_probation) == (2, "tree 2", True)
    ledger, words = survived(ledger)
    assert (fates(ledger), ledger.trusted, words) == (["trusted", "trusted"], 2, "")
    assert ledger.records[1].first_attempt == 4


def test_all_nodes_must_have_survived() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1), 0), 1)
    ledger, _ = rules.survived(ledger, "a", 20, 0.1, ("a", "b"))
    assert fates(ledger)[1] == "probation"
    again = rules.begun(ledger, 2)
    again, _ = rules.survived(again, "b", 20, 0.1, ("a", "b"))
    assert fates(again)[1] == "probation", "what was survived in another attempt proves nothing"
    ledger, _ = rules.survived(ledger, "b", 20, 0.1, ("a", "b"))
    assert fates(ledger)[1] == "trusted"


@pytest.mark.parametrize(
    ("usual_s", "now_s", "is_slow"), [(0.1, 0.31, True), (0.1, 0.19, False), (0.0, 9.0, False), (0.001, 0.004, False)]
)
def test_a_version_that_is_much_slower_is_not_trusted(usual_s: float, now_s: float, is_slow: bool) -> None:
    ledger, _ = survived(started(), usual_s)
    ledger = rules.begun(rules.staged(ledger, version(2, 1), 0), 1)
    ledger, words = survived(ledger, now_s)
    assert bool(words) == is_slow
    assert fates(ledger)[1] == ("probation" if is_slow else "trusted")


def test_one_that_is_meant_to_be_slower_is_trusted() -> None:
    ledger, _ = survived(started(), 0.1)
    ledger = rules.begun(rules.staged(ledger, version(2, 1, slower=True), 0), 1)
    assert fates(survived(ledger, 0.9)[0])[1] == "trusted"


def test_what_fails_goes_back_with_all_that_was_built_on_it_and_is_not_tried_again() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1), 0), 1)
    ledger = rules.staged(ledger, version(3, 2), 0)
    ledger = rules.rolled_back(ledger, "boom")
    assert (fates(ledger), ledger.running, ledger.pending) == (["trusted", "rolled_back", "rolled_back"], 1, 0)
    assert "boom" in queries.why_not(ledger, version(4, 1, tree="tree 2"))
    assert queries.why_not(ledger, version(4, 1, tree="tree 3")) == "", "it has never been tried by itself"
    assert queries.why_not(ledger, version(4, 1, tree="tree 2", again=True)) == "", "unless somebody insists"
    assert queries.why_not(ledger, version(4, 1, tree="tree 2", settings={"lr": "1"})) == ""


def test_nodes_are_told_what_is_not_to_be_trusted() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1, tree="b" * 64), 0), 1)
    use = queries.use(rules.rolled_back(ledger, "boom"))
    assert use is not None
    assert use.rolled_back == ("2-bbbbbbbbbb",)


def test_what_is_pending_on_the_trusted_one_survives_a_rollback() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1), 0), 1)
    ledger, _ = survived(ledger)
    ledger = rules.staged(ledger, version(3, 2), 0)
    assert rules.rolled_back(ledger, "a trusted one is not rolled back") == ledger


def test_several_pending_updates_become_one() -> None:
    ledger = rules.staged(rules.staged(started(), version(2, 1), 50.0), version(3, 2, 1), 70.0)
    assert (fates(ledger), ledger.pending, ledger.due_unix_s) == (["trusted", "merged", "pending"], 3, 50.0)
    assert queries.ancestors(ledger, 3) == {1, 2}


def test_what_was_made_from_an_older_version_is_not_staged() -> None:
    ledger = rules.staged(started(), version(2, 1), 0)
    late = version(3, 1)
    assert "2 is the newest" in queries.why_not(ledger, late)
    assert rules.staged(ledger, late, 0) is ledger
    assert rules.staged(Ledger(), version(1), 0) == Ledger()


def test_a_person_may_go_back_to_what_was_trusted_alone() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1), 0), 1)
    ledger, _ = survived(ledger)
    ledger = rules.begun(rules.staged(ledger, version(3, 2), 0), 2)
    assert queries.rollback_target(ledger, 3) is None
    back = rules.taken_back(ledger, 0, "by hand")
    assert (fates(back), back.running) == (["trusted", "trusted", "rolled_back"], 2)
    first = rules.taken_back(back, 1, "by hand")
    assert (fates(first), first.running, first.trusted) == (["trusted", "rolled_back", "rolled_back"], 1, 1)
    assert queries.rollback_target(started(), 0) is None


def test_taking_back_what_is_pending_disturbs_nobody() -> None:
    ledger = rules.taken_back(rules.staged(started(), version(2, 1), 9.0), 0, "by hand")
    assert (fates(ledger), ledger.running, ledger.pending, ledger.due_unix_s) == (["trusted", "rolled_back"], 1, 0, 0)


def test_a_change_begins_where_its_folder_was_last_taken_from() -> None:
    ledger = rules.staged(started(), version(2, 1, source="h:/bob"), 0)
    assert queries.base_of(ledger, "h:/a") == 1
    assert queries.base_of(ledger, "h:/bob@abc") == 2
    assert queries.base_of(ledger, "h:/new") == 1
    ledger = rules.rolled_back(rules.begun(ledger, 1), "boom")
    assert queries.base_of(ledger, "h:/bob") == 1, "what was taken back is not what the change is to be read against"


def test_only_what_code_can_bring_about_is_blamed_on_it() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1), 0), 1)
    assert all(queries.is_blamed(ledger, kind) for kind in ("crash", "code", "nan", "slow", "hang"))
    assert not any(queries.is_blamed(ledger, kind) for kind in ("node_lost", "node_fault"))
    assert not queries.is_blamed(started(), "crash")


def test_a_ledger_travels_as_it_is() -> None:
    ledger, _ = survived(rules.begun(rules.staged(started(), version(2, 1, env={"A": "b"}), 7.0), 1))
    for codec in (msgspec.json, msgspec.msgpack):
        assert codec.decode(codec.encode(ledger), type=Ledger) == ledger


def test_what_is_rolled_back_names_all_updates_that_it_was_merged_from() -> None:
    ledger = rules.begun(rules.staged(started(), version(2, 1, by="ann", summary="a.py +1 -0"), 0), 1)
    ledger = rules.staged(ledger, version(3, 2, by="bob", summary="b.py +1 -0"), 0)
    ledger = rules.begun(rules.staged(ledger, version(4, 3, by="cem", summary="c.py +1 -0"), 0), 2)
    assert queries.parts_of(ledger, 4) == [2, 3]
    said = queries.all_words(ledger, ledger.records[3].version)
    assert (
        said
        == "version 4 (c.py +1 -0; by cem), with version 3 (b.py +1 -0; by bob), version 2 (a.py +1 -0; by ann) in it,"
    )
    back = rules.rolled_back(ledger, "boom")
    assert fates(back) == ["trusted", "merged", "merged", "rolled_back"]
    assert {back.records[number].why for number in (1, 2)} == {"it was part of version 4, which was rolled back: boom"}
    after, _ = survived(ledger)
    after = rules.staged(after, version(5, 4), 0)
    assert queries.parts_of(after, 5) == [], "what was trusted since is no part of it"


def test_what_is_staged_names_the_unproven_version_that_runs_and_is_in_it() -> None:
    """The same updates are named when it is staged as when it is rolled back."""
    ledger = rules.staged(started(), version(2, 1, by="ann", summary="a.py +1 -0"), 0)
    ledger = rules.begun(rules.staged(ledger, version(3, 2, by="bob", summary="b.py +1 -0"), 0), 1)
    ledger = rules.staged(ledger, version(4, 3, by="cem", summary="c.py +1 -0"), 0)
    staged = queries.all_words(ledger, ledger.records[3].version)
    ledger = rules.begun(ledger, 2)
    assert staged == queries.all_words(ledger, ledger.records[3].version)
    assert "with version 3 (b.py +1 -0; by bob), version 2 (a.py +1 -0; by ann) in it" in staged


def test_what_waits_already_can_only_get_another_time() -> None:
    ledger = rules.staged(started(), version(2, 1), 99.0)
    assert queries.is_pending(ledger, version(2, 1, by="another"))
    assert not queries.is_pending(ledger, version(2, 1, tree="another"))
    later = rules.staged(ledger, version(2, 1), 500.0)
    assert (fates(later), later.pending, later.due_unix_s) == (["trusted", "pending"], 2, 500.0)


def test_nodes_learn_whether_what_is_trusted_makes_steps() -> None:
    def makes_steps(ledger: Ledger) -> bool:
        use = queries.use(ledger)
        assert use is not None
        return use.makes_steps

    assert not makes_steps(started())
    both = ("a", "b")
    ledger, _ = rules.survived(started(), "a", 20, 0.1, both)
    assert makes_steps(rules.survived(ledger, "b", 20, 0.1, both)[0])
    assert not makes_steps(rules.survived(ledger, "b", 0, 0.0, both)[0]), "not on every node"
    trusted, _ = survived(rules.begun(rules.staged(started(), version(2, 1), 0), 1), 0.0, steps=0)
    assert (fates(trusted)[1], makes_steps(trusted)) == ("trusted", False)
    assert "makes no steps" in trusted.records[1].why


def test_what_nodes_say_is_noted_in_place_and_they_are_gone_through_once() -> None:
    """10,000 nodes say it once in each attempt: a copy or a look at all of them for each would take minutes of the controller."""

    class Counted(dict[str, int]):
        looked_through = 0

        def __iter__(self) -> Iterator[str]:
            self.looked_through += 1
            return super().__iter__()

    nodes = Counted({f"node-{number}": number for number in range(50)})
    ledger = rules.begun(rules.staged(started(), version(2, 1), 0), 1)
    noted = ledger.survived
    for number in reversed(range(50)):
        ledger, _ = rules.survived(ledger, f"node-{number}", 20, 0.1, nodes)
        assert ledger.survived is noted and nodes.looked_through <= (2 if number == 0 else 0)
    assert fates(ledger) == ["trusted", "trusted"]
