"""The guide at hand: `robust docs` lists, prints and searches, `robust dashboard` writes what Grafana and Prometheus take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from robust_run import guide
from robust_run.errors import UserError
from robust_run.robust_cli import robust

DOCS = Path(__file__).resolve().parents[1] / "docs"


def said(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(robust, words, standalone_mode=False, catch_exceptions=False)
    assert (result.return_value or 0) == code, result.output
    return result.output


def test_every_page_and_file_is_listed_pages_with_their_titles() -> None:
    lines = said("docs").splitlines()
    listed = {line.split()[0] for line in lines if line}
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    assert pages | {"grafana/robust-run.json", "grafana/alerts.yml"} <= listed
    assert any(line.split() == ["hangs", "My", "job", "hangs"] for line in lines)
    assert not any("man/" in line for line in lines), "these are for man"


@pytest.mark.parametrize("name", ["start", "Start", "start.md"])
def test_a_page_is_printed_as_readers_see_it(name: str) -> None:
    text = said("docs", name)
    assert text.startswith("# Start here")
    assert "<!--" not in text, "notes for tests of the page"
    assert "```sh\n" in text
    assert "```sh run" not in text


def test_what_is_no_page_is_printed_as_it_is() -> None:
    assert said("docs", "grafana/alerts.yml") == (DOCS / "grafana/alerts.yml").read_text()


def test_a_page_that_is_not_there_has_one_guess() -> None:
    with pytest.raises(UserError, match=r"no page .hang.; did you mean robust docs hangs\?"):
        said("docs", "hang")


@pytest.mark.parametrize("name", ["../pyproject.toml", "/etc/passwd", "../README"])
def test_nothing_else_can_be_asked_for(name: str) -> None:
    with pytest.raises(UserError, match="has no page"):
        said("docs", name)


def test_a_word_is_found_with_page_and_heading_whatever_its_capitals() -> None:
    text = said("docs", "--search", "sigSTOP")
    assert "hangs: " in text
    assert any("SIGSTOP" in line for line in text.splitlines() if line.startswith("    "))


def test_a_word_that_nobody_wrote_ends_with_1() -> None:
    assert "no page has 'xyzzyq'" in said("docs", "--search", "xyzzyq", code=1)


def test_an_installation_that_lost_its_guide_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guide, "PLACES", (str(tmp_path / "guide_files"),))
    with pytest.raises(guide.PlatformError, match=r"has no guide: .* install it again"):
        said("docs")


def test_the_dashboard_and_the_rules_are_what_the_repository_has(tmp_path: Path) -> None:
    assert json.loads(said("dashboard")) == json.loads((DOCS / "grafana/robust-run.json").read_text())
    target = tmp_path / "rules.yml"
    said("dashboard", "--alerts", "-o", str(target))
    assert target.read_text() == (DOCS / "grafana/alerts.yml").read_text()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*: No such file or directory; choose another file"):
        said("dashboard", "-o", str(tmp_path / "missing" / "file"))
