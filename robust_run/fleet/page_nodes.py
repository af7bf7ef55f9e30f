"""The fleet's page: which nodes fail, and how often. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.fleet.page_charts import whisker
from robust_run.fleet.results import Fleet, Lemon, Rate
from robust_run.fleet.show import (
    counted,
    figure,
    lemon_lines,
    rate_words,
)
from robust_run.report.pages.markup import breakable, section, table, text
from robust_run.report.pages.words import ago

MOST_NODES, MOST_LEMONS = 20, 30


def lemons_section(fleet: Fleet) -> str:
    """Return which nodes failed oftener than others."""
    search = fleet.lemons
    note = (
        f"{counted(search.failures, 'failure')} of {counted(search.nodes, 'node')} looked at. A node is named that fails so "
        "often that the chance is below 1 % that any healthy node of this fleet does. Failures of programs and of several "
        "nodes at once do not count."
    )
    if not search.lemons:
        return section(
            "lemons",
            "Lemon nodes",
            f"<p>{text(next(lemon_lines(search, fleet.at_unix_s)).capitalize())}.</p>",
            note=note,
        )
    most = max(each.rate.high for each in search.lemons)
    rows = (_lemon(each, most, fleet.at_unix_s) for each in search.lemons[:MOST_LEMONS])
    heads = ("node", "#failures", "#due", "#times as often", "", "#per 1,000 days", "of these kinds", "last")
    more = len(search.lemons) - MOST_LEMONS
    return section(
        "lemons",
        "Lemon nodes",
        table(heads, rows, "lemon nodes", "stack"),
        f"<p class=dim>{more:,} more are not listed</p>" if more > 0 else "",
        note=note,
    )


def _lemon(lemon: Lemon, most: float, now_s: float) -> tuple[str, ...]:
    chance = f"1 in {1 / lemon.chance:,.0f}" if lemon.chance > 1e-9 else "below 1 in 1,000,000,000"
    return (
        f"<b title='by chance: {chance}'>{breakable(lemon.node, 120)}</b>",
        f"{lemon.failures:,}<br><span class='dim small nowrap'>in {counted(lemon.runs, 'run')}</span>",
        f"{lemon.expected:.1f}",
        figure(lemon.times),
        whisker(lemon.rate, most),
        f"<span class=nowrap>{rate_words(lemon.rate)}</span>",
        text(kinds_text(lemon.kinds)),
        f"<span class=nowrap>{ago(max(now_s - lemon.last_s, 0.0))}</span>",
    )


def rates_section(fleet: Fleet) -> str:
    """Return how often a node fails, by kind and component."""
    groups = (("", fleet.rates), ("by kind", fleet.kind_rates), ("by component", fleet.component_rates))
    if not fleet.shows_rates:
        return ""
    heads = ("faults", "#count", "", "#per 1,000 node-days", "#95 % interval")
    drawn = []
    for title, rates in groups:
        if not rates:
            continue
        most = max(each.high for each in rates.values())
        rows = (_rate(name, each, most) for name, each in rates.items())
        drawn.append(f"<h3>{title.capitalize()}</h3>" if title else "")
        drawn.append(table(heads, rows, f"failure rates {title}", "fl-rates"))
    note = (
        "The line reaches over the exact 95 % interval (Garwood), the dot is the rate. What strikes a node again within an "
        "hour is one fault."
    )
    return section("rates", "Failure rates", *drawn, note=note)


def _rate(name: str, rate: Rate, most: float) -> tuple[str, ...]:
    interval = f"{figure(rate.low)} to {figure(rate.high)}"
    return (text(name), f"{rate.count:,}", whisker(rate, most), figure(rate.per_1000), interval)


def nodes_section(fleet: Fleet) -> str:
    """Return which nodes failed, and in what."""
    shown = fleet.nodes[:MOST_NODES]
    if not shown:
        return ""
    kinds = list(dict.fromkeys(kind for kind in fleet.by_kind if any(kind in each.kinds for each in shown)))
    most = max(5, *(max(each.kinds.values()) for each in shown))
    lemons = {each.node for each in fleet.lemons.lemons}
    rows = (
        (
            f"<b>{breakable(each.node, 120)}</b>{' <span class=bad>lemon</span>' if each.node in lemons else ''}",
            *(_heat(each.kinds.get(kind, 0), most) for kind in kinds),
            f"{each.failures:,}",
            f"{each.evicted:,}" if each.evicted else "",
            figure(each.node_days) if each.node_days else "?",
        )
        for each in shown
    )
    heads = ("node", *(f"#{text(kind)}" for kind in kinds), "#own failures", "#evicted", "#node-days")
    more = len(fleet.nodes) - len(shown)
    return section(
        "nodes",
        "Incidents by kind and node",
        table(heads, rows, "incidents by kind and node", "fl-heat"),
        f"<p class=dim>{counted(more, 'more node')} with incidents not listed</p>" if more > 0 else "",
        note="Incidents that name a node. Its own failures are those that count when lemons are looked for.",
    )


def _heat(count: int, most: int) -> str:
    return f"<span class='fl-h fl-h{1 + min(4 * count // most, 4)}'>{count:,}</span>" if count else ""


def kinds_text(kinds: Mapping[str, int]) -> str:
    """Return numbers by kind in words."""
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
