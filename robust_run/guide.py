"""The guide that is installed with robust-run (pages, dashboard, alert rules, manifests): `robust docs`, `robust dashboard`.

A wheel has them in `robust_run/guide_files`; a checkout, and what is installed from one in place, in `docs` beside the package.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator

import click

from robust_run.errors import PlatformError, UserError
from robust_run.terminal import plain

PACKAGE = os.path.dirname(os.path.abspath(__file__))
PLACES = (os.path.join(PACKAGE, "guide_files"), os.path.join(os.path.dirname(PACKAGE), "docs"))
"""Where the files may be, the first that is there counts."""
FIRST_PAGE = "README"
DASHBOARD, ALERTS = "grafana/robust-run.json", "grafana/alerts.yml"

_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_FENCE = re.compile(r"^(```\w+) .*$", re.MULTILINE)
_HEADING = re.compile(r"#+ (.*)")
_MOST_HITS = 60


def folder() -> str:
    """Return where the guide's files are. Raises PlatformError where this installation has none."""
    for place in PLACES:
        if os.path.isfile(os.path.join(place, f"{FIRST_PAGE}.md")):
            return place
    raise PlatformError(f"this installation of robust-run has no guide: {PLACES[0]} is missing; install it again")


def names(place: str) -> list[str]:
    """Return every file of the guide, as it is asked for: pages without their `.md`, others by their path."""
    found = []
    for path, folders, files in os.walk(place):
        folders[:] = sorted(name for name in folders if name not in ("man",) and not name.startswith((".", "_")))
        inner = os.path.relpath(path, place).replace(os.sep, "/")
        prefix = "" if inner == "." else f"{inner}/"
        found += [f"{prefix}{name.removesuffix('.md')}" for name in files if not name.startswith(".")]
    return sorted(found, key=lambda name: (not _is_page(place, name), name.lower()))


def read(place: str, name: str) -> str:
    """Return a page without its notes for tests, or another file as it is. Raises UserError for a name that is not there."""
    known = {each.lower(): each for each in names(place)}
    found = known.get(name.lower().removesuffix(".md"))
    if found is None:
        near = difflib.get_close_matches(name.lower(), known, 1)
        hint = f"did you mean robust docs {known[near[0]]}?" if near else "robust docs lists them"
        raise UserError(f"the guide has no page {name!r}; {hint}")
    is_page = _is_page(place, found)
    with open(os.path.join(place, f"{found}.md" if is_page else found), encoding="utf-8") as file:
        text = file.read()
    return for_readers(text) if is_page else text


def for_readers(text: str) -> str:
    """Return a page without what only tests of the commands that it shows read."""
    return _FENCE.sub(r"\1", _COMMENT.sub("", text))


def title(text: str) -> str:
    """Return the first heading of a page; empty if it has none."""
    return next((found[1] for line in text.splitlines() if (found := _HEADING.fullmatch(line))), "")


def hits(place: str, word: str) -> Iterator[tuple[str, str, str]]:
    """Yield page, heading and line of each line that has a word, capitals or not: pages that have it in their title first."""
    wanted = word.lower()
    pages = [(name, read(place, name)) for name in names(place) if _is_page(place, name)]
    for name, text in sorted(pages, key=lambda page: wanted not in title(page[1]).lower()):
        heading = ""
        for line in text.splitlines():
            if found := _HEADING.fullmatch(line):
                heading = found[1]
            if wanted in line.lower():
                yield name, heading, line.strip()


def _is_page(place: str, name: str) -> bool:
    return os.path.isfile(os.path.join(place, f"{name}.md"))


@click.command()
@click.argument("page", required=False, default="")
@click.option("--search", "word", default="", metavar="WORD", help="List lines with this word, page by page.")
@click.option("--folder", "is_folder", is_flag=True, help="Print where the files are.")
def docs(page: str, word: str, is_folder: bool) -> int:
    """Read the guide: list its pages, print PAGE, or search for a word. Manifests and dashboards are printed as they are."""
    place = folder()
    if is_folder:
        click.echo(place)
    elif word:
        return _search(place, word)
    elif page:
        _show(read(place, page), is_page=_is_page(place, page.removesuffix(".md")))
    else:
        _list(place)
    return 0


def _list(place: str) -> None:
    found = names(place)
    width = max(map(len, found))
    for name in found:
        about = title(read(place, name)) if _is_page(place, name) else ""
        click.echo(f"{name:{width}}  {about}".rstrip())
    click.echo("\nrobust docs PAGE prints one; robust docs --search WORD finds one", err=True)


def _search(place: str, word: str) -> int:
    count, at = 0, ("", "")
    for count, (name, heading, line) in enumerate(hits(place, word), 1):
        if count > _MOST_HITS:
            click.echo(f"... and more; robust docs PAGE | grep {word!r} shows those of a page", err=True)
            break
        if at != (name, heading):
            click.echo(click.style(f"{name}: {heading}", bold=True))
            at = (name, heading)
        click.echo(f"    {line[:160]}")
    if not count:
        click.echo(f"robust: no page has {plain(word)!r}; robust docs lists the pages", err=True)
    return 0 if count else 1


def _show(text: str, *, is_page: bool) -> None:
    """Print a text as it is; at a terminal set a page, and page it where it is longer than the screen."""
    if not (is_page and sys.stdout.isatty()):
        click.echo(text, nl=not text.endswith("\n"))
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.capture() as captured:
        console.print(Markdown(text))
    click.echo_via_pager(captured.get())


@click.command()
@click.option("--alerts", is_flag=True, help="The alert rules of Prometheus in place of the dashboard.")
@click.option("-o", "--output", default="-", metavar="FILE", help="Write to FILE; - is stdout.")
def dashboard(alerts: bool, output: str) -> None:
    """Write the Grafana dashboard, or with --alerts the rules for Prometheus. Grafana: Dashboards, New, Import."""
    text = read(folder(), ALERTS if alerts else DASHBOARD)
    if output == "-":
        click.echo(text, nl=False)
        return
    try:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {output!r}: {error.strerror}; choose another file") from error
    click.echo(f"robust: wrote {output}", err=True)
