"""Makes docs/ a site, for mkdocs: pages of the API, files from above docs/, a menu in the order of docs/README.md.

The pages stay as they are read in a checkout. What only their tests read is left out here; links out of docs/ are mended.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent
#: Files above docs/ that become pages.
ABOVE = ("BENCHMARKS.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
API = "api"
#: Names of a module that are defined elsewhere, and whose place in it is a package's of the same name.
ELSEWHERE = {"robust_run": ("robust_run.health.metrics.reporting.report",)}
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FENCE = re.compile(r"^```(\w+) .*$", re.MULTILINE)
#: Links out of docs/, to pages that are here and to files that are not.
_OUT = re.compile(r"\[([^\]]*)\]\((?:\.\./)+([^)#]+)(#[^)]*)?\)")
_LINKS = re.compile(r"\]\(([^)#:\s]+\.md)(?:#[^)]*)?\)")
_MODULES = re.compile(r"^\| \*\*`([\w.]+)`\*\* \|", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the menu: each section of the first page, in its order; pages in folders; the API."""
    text = (Path(config.docs_dir) / "README.md").read_text(encoding="utf-8")
    first, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    sections = [("Now", first), *((part.partition("\n")[0].strip(), part) for part in parts)]
    listed: set[str] = set()
    menu: list[Any] = [{"Guide": "README.md"}]
    for name, part in sections:
        found = [_inside(each) for each in dict.fromkeys(_LINKS.findall(part)) if _inside(each) not in listed]
        listed |= set(found)
        if found:
            menu.append({name: list(found)})
    for folder, found in _in_folders(Path(config.docs_dir)).items():
        if rest := [each for each in found if each not in listed]:
            menu.append({folder.capitalize(): rest})
    above = [each for each in ABOVE if each not in listed]
    config.nav = [*menu, {"Python API": [f"{API}/{name}.md" for name in modules(config.docs_dir)]}, {"Project": above}]
    return config


def _in_folders(docs: Path) -> dict[str, list[str]]:
    """Return the pages in folders of docs/, which a page there lists and the first page need not."""
    found: dict[str, list[str]] = {}
    for path in sorted(docs.glob("*/*.md")):
        found.setdefault(path.parent.name, []).append(path.relative_to(docs).as_posix())
    return found


def modules(docs_dir: str) -> list[str]:
    """Return the modules that may be imported from outside, as docs/python.md lists them."""
    return _MODULES.findall((Path(docs_dir) / "python.md").read_text(encoding="utf-8"))


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for name in ABOVE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    worker = (ROOT / "site_worker.js").read_text(encoding="utf-8")
    files.append(File.generated(config, "assets/iframe-worker.js", content=worker))
    for name in modules(config.docs_dir):
        more = "".join(f"\n::: {each}\n    options: {{show_root_heading: true}}\n" for each in ELSEWHERE.get(name, ()))
        files.append(File.generated(config, f"{API}/{name}.md", content=f"# {name}\n\n::: {name}\n{more}"))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Leave out what only tests read, and mend links that lead out of docs/."""
    text = _FENCE.sub(r"```\1", _COMMENT.sub("", markdown))
    if page.file.src_uri in ABOVE:
        return re.sub(r"\]\(docs/", "](", text)
    return _OUT.sub(lambda link: _mended(link, page.file.src_uri), text)


def _mended(link: re.Match[str], source: str) -> str:
    """Return a link to a page made of a file above docs/; of a file that is no page, its name."""
    target = link[2]
    if target not in ABOVE:
        return f"`{target}`" if link[1] == target else f"{link[1]} (`{target}` in the repository)"
    return f"[{link[1]}]({posixpath.relpath(target, posixpath.dirname(source) or '.')}{link[3] or ''})"


def _inside(target: str) -> str:
    return os.path.normpath(target).replace(os.sep, "/").removeprefix("../")
