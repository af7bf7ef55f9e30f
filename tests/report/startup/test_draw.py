"""The waterfall as a page's piece: whole, without scripts, safe against what a job is called, small for ten thousand ranks."""

from __future__ import annotations

from html.parser import HTMLParser

import msgspec
from made_starts import attempt_of, node_start, slow_node, startup_of

from robust_run.report.startup import text
from robust_run.report.startup.draw import page, waterfall
from robust_run.report.startup.style import STYLE

VOID = {"meta", "br", "rect", "path"}
OPTIONAL = {"th", "td", "tr"}


class Reader(HTMLParser):
    """Collects tags, and fails where one is closed that is not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID | OPTIONAL:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID | OPTIONAL:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_it_shows_every_node_who_was_slow_and_what_to_do() -> None:
    html = waterfall(startup_of(slow_node(8, 8)), 0)
    words = " ".join(Reader(html).words)
    assert "First step after 16.0 s" in words
    assert all(f"node-{number}" in words for number in range(8))
    assert "▲ load 9.8 s, median 2.0 s" in words
    assert "robust evict node-7" in words


def test_bars_are_described_for_who_cannot_see_them() -> None:
    reader = Reader(waterfall(startup_of(attempt_of(node_start(0)))))
    labels = [value or "" for name, value in reader.attributes if name == "aria-label"]
    assert any("rank 0: " in label and "imports 1.0 s" in label for label in labels)
    assert "title" in reader.seen


def test_it_needs_no_script_and_no_network() -> None:
    html = page(startup_of(slow_node()))
    reader = Reader(html)
    assert not {"script", "img", "link", "iframe"} & set(reader.seen)
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("src", "href")]
    assert "http" not in html
    assert "@import" not in html


def test_the_pages_own_colours_come_first() -> None:
    html = waterfall(startup_of(slow_node()))
    for name in ("--ink", "--muted", "--line", "--bad", "--series-1", "--series-8"):
        assert f"var({name},#" in html


def test_hosts_with_evil_names_do_no_harm() -> None:
    evil = '<script>alert("x")</script>&\x1b'
    found = slow_node()
    (load,) = [each for each in found.phases if each.phase == "load"]
    bad = [msgspec.structs.replace(each, node=evil) for each in load.stragglers]
    phases = (msgspec.structs.replace(load, node=evil, stragglers=tuple(bad)),)
    rows = tuple(msgspec.structs.replace(row, node=evil) for row in found.node_rows)
    html = page(
        msgspec.structs.replace(
            startup_of(msgspec.structs.replace(found, phases=phases, node_rows=rows, rows=rows)), run_id=evil
        )
    )
    assert "<script" not in html
    assert "\x1b" not in html
    assert "script" not in Reader(html).seen


def test_ten_thousand_ranks_make_a_small_page() -> None:
    found = attempt_of(*(node_start(n, 8, load_s=2.0 + 0.01 * (n % 7), first_step_s=120.0) for n in range(1250)))
    html = page(startup_of(found))
    assert len(html) < 300_000
    assert "48 of 1,250 nodes" in html


def test_nothing_is_drawn_of_what_is_not_known() -> None:
    assert waterfall(startup_of()) == ""
    assert waterfall(startup_of(slow_node()), 7) == ""


def test_a_terminal_gets_lines_that_fit() -> None:
    lines = list(text.lines(startup_of(slow_node(8, 8)), None, 80))
    bars = [line for line in lines if "rank" in line and line.rstrip().endswith("16.0 s")]
    assert len(bars) == 8
    assert all(len(line) <= 80 for line in bars)
    assert bars[7].count("L") > 2 * bars[6].count("L")
    assert any(line.endswith("slow: node-7") for line in lines)
    assert "\x1b" not in "".join(lines)


def test_the_rules_of_the_page_around_it_do_not_reach_in() -> None:
    assert ".rr-wf svg.rr-wf-swatch{display:inline-block" in STYLE, "a page may show pictures as blocks"
    assert "section.rr-wf{margin:0;padding:0;border:0}" in STYLE, "a page may draw lines between its sections"
