"""Rounds one after the other: who has shown itself bad does not meet others, who says nothing is taken to hang."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from robust_run.errors import PlatformError, UserError
from robust_run.health.checks.history import History
from robust_run.health.checks.plan import Wish
from robust_run.health.checks.session import Session
from robust_run.health.checks.types import NodeFacts, Result
from robust_run.health.diagnostics import records

Make = Callable[..., Result]


def driven(
    session: Session, make: Make, answer: Callable[[str, str], dict[str, object] | None]
) -> list[tuple[str, tuple]]:  # type: ignore[type-arg]
    """Carry all rounds out; `answer(check, node)` changes a result, None leaves it out."""
    seen = []
    while (made := session.next_round()) is not None:
        seen.append((made.check, made.groups))
        results = []
        for group in made.groups:
            for name in group:
                change = answer(made.check, name)
                if change is not None:
                    more = {"group": group} if len(group) > 1 else {}
                    results.append(make(made.check, name, round=made.number, **more, **change))
        session.take(made, results)
    return seen


def nodes(names: str) -> list[NodeFacts]:
    return [NodeFacts(name=name) for name in names]


def test_a_bad_node_does_not_spoil_the_checks_of_others(result: Make) -> None:
    session = Session(nodes("abcd"), Wish(only=("compute", "neighbours")))
    seen = driven(session, result, lambda check, node: {"wrong": ("x",)} if (check, node) == ("compute", "b") else {})
    assert ("neighbours", (("a", "c"),)) in seen
    assert all("b" not in group for check, groups in seen if check == "neighbours" for group in groups)
    judged = session.judgement()
    assert [each.node for each in judged.suspects] == ["b"]
    assert any(note.startswith("b did not take part in neighbours") for note in judged.notes)


def test_a_node_that_hangs_with_its_first_neighbour_does_not_meet_the_second(result: Make) -> None:
    session = Session(nodes("abcd"), Wish(only=("neighbours",)))
    seen = driven(session, result, lambda check, node: {"outcome": "hung"} if node == "b" else {})
    assert seen == [("neighbours", (("a", "b"), ("c", "d"))), ("neighbours", (("d", "a"),))]
    assert [(each.node, each.rule) for each in session.judgement().suspects] == [("b", "hung")]


def test_a_node_that_never_answers_is_found(result: Make) -> None:
    session = Session(nodes("abc"), Wish(only=("memory",)))
    driven(session, result, lambda check, node: None if node == "c" else {})
    assert [(each.node, each.rule) for each in session.judgement().suspects] == [("c", "hung")]


def test_all_rounds_are_those_of_the_plan_while_nothing_is_found(result: Make) -> None:
    session = Session(nodes("abcd"), Wish())
    seen = driven(session, result, lambda check, node: {})
    assert seen == [(made.check, made.groups) for made in session.plan.rounds]
    assert session.judgement().passed == ("a", "b", "c", "d")


def test_the_history_is_kept_and_read_again(tmp_path: object) -> None:
    path = f"{tmp_path}/deep/checks.json"
    assert records.load(path) == History()
    records.change(path, lambda found: msgspec.structs.replace(found, series={"a": (1.0,)}))
    records.change(path, lambda found: msgspec.structs.replace(found, series={**found.series, "b": (2.0,)}))
    assert records.load(path).series == {"a": (1.0,), "b": (2.0,)}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"series": {"a": ["x"]}}', '{"series": ' + "[" * 5000, "\udcff"])
def test_a_file_that_is_no_history_is_refused_by_name(tmp_path: object, text: str) -> None:
    path = f"{tmp_path}/checks.json"
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    with pytest.raises(UserError, match=r"checks\.json is no history"):
        records.load(path)


def test_a_history_that_cannot_be_written_is_said(tmp_path: object) -> None:
    with open(f"{tmp_path}/file", "w", encoding="utf-8"):
        pass
    with pytest.raises(PlatformError, match="--history"):
        records.change(f"{tmp_path}/file/checks.json", lambda found: found)


def test_a_node_that_went_meanwhile_is_unchecked_and_not_hung(result: Make) -> None:
    session = Session(nodes("abc"), Wish(only=("compute", "neighbours")))
    made = session.next_round()
    assert made is not None
    session.leave("c", "it was restarted")
    session.take(made, [result("compute", "a"), result("compute", "b")])
    seen = driven(session, result, lambda check, node: {})
    assert all("c" not in group for _, groups in seen for group in groups)
    judged = session.judgement()
    assert not judged.suspects and not judged.ambiguous
    assert judged.unchecked == ("c could not be checked to the end: it was restarted",)
    assert judged.passed == ("a", "b")


def test_who_waited_for_a_node_that_went_is_not_accused(result: Make) -> None:
    session = Session(nodes("ab"), Wish(only=("neighbours",)))
    made = session.next_round()
    assert made is not None
    session.leave("b", "it was restarted")
    session.take(made, [result("neighbours", "a", outcome="hung", group=("a", "b"))])
    assert not session.judgement().suspects and not session.judgement().ambiguous


def test_what_is_to_come_for_a_node_is_what_is_planned() -> None:
    session = Session(nodes("abc"), Wish(only=("compute", "disk", "neighbours")))
    first = session.next_round()
    assert first is not None and first.check == "compute"
    assert session.to_come(first, "a") == ("disk", "neighbours", "neighbours")
    assert session.to_come(session.plan.rounds[-1], "a") == ()
    assert session.to_come(first, "somebody else") == ()
