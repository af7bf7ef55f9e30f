"""Tables of docs/ say what the code says; links lead somewhere."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from generated_docs import DOCS, PART, PARTS, RUN_FILES, made_anew
from man_pages import man_pages
from shown_commands import RECIPES, pages, recipes

from robust_run.health.rules.table import DEFAULTS
from robust_run.health.types import FindingKind
from robust_run.report.pages.advice import BY_KIND
from robust_run.report.pages.rules import KIND_TITLES, NCCL_RULES, RULES
from robust_run.report.types import ActionName, VerdictKind

ROOT = DOCS.parent
#: Where verdicts are made: what is given as `rule` there ends up in an incident.
MAKERS = (
    "robust_run/launcher/core/diagnosis/verdict.py",
    "robust_run/launcher/core",
    "robust_run/tracer/verdict",
    "robust_run/tracer/pace",
)
#: Rules of evictions, not of verdicts.
OTHERS = {"ladder"}


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_generated_parts_are_what_the_code_says_now(page: Path) -> None:
    text = page.read_text()
    assert text == made_anew(text), "type: python tests/generated_docs.py"


@pytest.mark.parametrize(("name", "text"), man_pages().items(), ids=man_pages())
def test_man_pages_are_what_the_code_says_now(name: str, text: str) -> None:
    assert (DOCS / "man" / name).read_text() == text, "type: python tests/generated_docs.py"


def test_every_part_that_can_be_made_stands_on_a_page() -> None:
    assert sorted(name for page in pages() for name, _ in PART.findall(page.read_text())) == sorted(PARTS)


def test_every_kind_of_verdict_is_explained() -> None:
    assert set(KIND_TITLES) == set(BY_KIND) == set(VerdictKind.__args__)  # type: ignore[attr-defined]


def test_every_action_is_explained() -> None:
    page = (DOCS / "verdicts.md").read_text()
    part = page[page.index("## What was done") : page.index("## Kinds")]
    assert set(re.findall(r"`(\w+)`", part)) >= set(ActionName.__args__)  # type: ignore[attr-defined]


def test_every_rule_that_the_code_can_give_as_a_reason_is_explained() -> None:
    found = {rule for maker in MAKERS for path in _sources(ROOT / maker) for rule in _rules_given(path)}
    assert len(found) > 25, "the search finds what it is for"
    assert found - set(RULES) - set(DEFAULTS) - OTHERS == set()


def test_every_symptom_in_the_words_of_a_worker_is_explained_where_it_becomes_a_rule() -> None:
    kinds = set(FindingKind.__args__)  # type: ignore[attr-defined]
    assert kinds - {"exception", "peer_connection"} <= set(RULES), (
        "these two become user_exception and only_peer_errors"
    )


def test_every_rule_inside_nccl_is_explained() -> None:
    found = {rule for path in _sources(ROOT / "robust_run/tracer/nccl") for rule in _rules_given(path)}
    assert len(found) > 8
    assert {rule.replace("-", "_") for rule in found} - set(NCCL_RULES) == set()


@pytest.mark.parametrize("page", [*pages(), *recipes(), ROOT / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*)(?:#[^)]*)?\)", page.read_text()):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
    for target, anchor in re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}, (
            f"{target}#{anchor}"
        )


def test_every_page_can_be_reached_from_the_first() -> None:
    first = (DOCS / "README.md").read_text()
    assert [page.name for page in pages() if page.name != "README.md" and f"({page.name}" not in first] == []
    assert "(recipes/README.md)" in first
    of_recipes = (RECIPES / "README.md").read_text()
    assert [page.name for page in recipes() if page.name != "README.md" and f"({page.name})" not in of_recipes] == []


def _sources(path: Path) -> list[Path]:
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _rules_given(path: Path) -> set[str]:
    """Return the words that are given as `rule=` to a call, or assigned to a variable `rule`, as far as they are literal."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "rule":
            found |= _literals(node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(names, values, strict=False):
                    if isinstance(name, ast.Name) and name.id == "rule":
                        found |= _literals(value)
    return found


def _literals(value: ast.expr) -> set[str]:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return {value.value} - {""}
    if isinstance(value, ast.IfExp):
        return _literals(value.body) | _literals(value.orelse)
    if isinstance(value, ast.BoolOp):
        return {word for part in value.values for word in _literals(part)}
    return set()


def test_the_table_of_files_has_what_the_code_says_of_the_run_directory() -> None:
    said = (
        (ROOT / "robust_run/launcher/records/run_directory.py")
        .read_text()
        .partition("<log dir>")[2]
        .partition("With several")[0]
    )
    names = re.findall(r"^    (\S+)  ", said, re.MULTILINE)
    assert len(names) > 15
    known = {re.split(r"[\d<]|_N|NNNN|HOST|RANK|XX|ID|\.\.\.", name)[0] for name, _, _ in RUN_FILES}
    assert {re.split(r"[\d<]|_N", name)[0] for name in names} - known - {"code/"} == set()
