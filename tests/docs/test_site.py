"""The guide as a site: it builds strictly, so that links and anchors lead somewhere, and is read and searched from a disk."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from browser import opened
from page_ground import need_chromium
from shown_commands import DOCS, pages

ROOT = DOCS.parent
#: Public modules, as docs/python.md lists them.
MODULES = re.findall(r"^\| \*\*`([\w.]+)`\*\* \|", (DOCS / "python.md").read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.mark.timeout(900)
def test_it_has_every_page_and_no_word_that_is_for_tests(site: Path) -> None:
    for page in pages():
        text = (site / ("index.html" if page.name == "README.md" else f"{page.stem}.html")).read_text()
        assert "For the test" not in text, page.name
        assert not re.search(r"```\w+|sh run says=", text), f"{page.name}: a block that is none"


@pytest.mark.timeout(900)
def test_every_public_module_has_a_page_with_every_name(site: Path) -> None:
    assert len(MODULES) >= 5
    for module in MODULES:
        text = (site / "api" / f"{module}.html").read_text()
        names = __import__(module, fromlist=["__all__"]).__all__
        missing = [name for name in names if not re.search(rf'id="[\w.]+\.{name}"', text)]
        assert not [name for name in missing if not name.startswith("__")], module


@pytest.mark.timeout(900)
def test_it_is_searched_without_a_network(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    assert {"hangs.html", "kubernetes.html"} <= {each["location"] for each in index["docs"]}
    # What a browser would fetch: nothing from elsewhere, in whatever page.
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="([^"]+)"', page.read_text())
        away = [each for each in fetched if each.startswith(("http:", "https:", "//"))]
        assert not away, f"{page.name}: {away}"


TYPE_IT = """(() => {
    const field = document.querySelector(".md-search__input");
    field.focus();
    field.value = "controller standby";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    return [...document.querySelectorAll(".md-search-result__link")].map(link => link.pathname).join();
})()"""


@pytest.mark.timeout(900)
def test_a_browser_that_opens_pages_from_a_disk_finds_words_on_each(site: Path) -> None:
    need_chromium()

    async def found() -> None:
        async with opened("about:blank") as tab:
            for page in ("index.html", "api/robust_run.html"):
                await tab.call("Page.navigate", url=(site / page).as_uri())
                await tab.wait_for(f"location.pathname.endsWith('/{page}') && document.readyState === 'complete'")
                assert "/many-nodes.html" in str(await tab.wait_for(TYPE_IT)), page
                assert tab.errors == [], page

    asyncio.run(found())
