"""Makes the parts of docs/ that are tables of the code: `python tests/docs/generated.py` writes them anew.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; everything around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from robust_run.health.ladder.rules import RULES as LADDER_RULES
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import Rule
from robust_run.launcher.option_types import GROUPS, HELP, OptionDescription
from robust_run.launcher.options import HELP_OPTIONS, OPTIONS
from robust_run.report.pages.advice import BY_KIND, BY_RULE, Step
from robust_run.report.pages.rules import KIND_TITLES, NCCL_RULES, RULES

DOCS = Path(__file__).resolve().parents[2] / "docs"
PART = re.compile(r"<!-- generated: ([a-z ]+) -->\n(.*?)<!-- end of \1 -->\n", re.DOTALL)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def flags() -> Iterator[str]:
    """Every option, group by group, in the order of the help page."""
    for group in GROUPS:
        options = [option for option in (*OPTIONS, *HELP_OPTIONS) if option.group == group]
        if not options:
            continue
        yield from ("", f"## {group[0].upper()}{group[1:]}", "")
        yield from (_row("option", "what it does", "default", "variable"), "|---|---|---|---|")
        for option in options:
            yield _row(_names(option), _cell(option.help), _default(option), f"`{option.env}`" if option.env else "")
    yield ""


def _names(option: OptionDescription) -> str:
    value = f"[={option.metavar}]" if option.kind == "maybe" else f" {option.metavar}" if option.metavar else ""
    short = f"`-{option.short}`, " if option.short else ""
    return short + f"`--{option.name}{value}`".replace("|", "\\|")


def _default(option: OptionDescription) -> str:
    if option.group == HELP or option.default in (None, False, "", ()):
        return ""
    return f"`{option.default:g}`" if isinstance(option.default, float) else f"`{option.default}`"


def kinds() -> Iterator[str]:
    """Every kind of verdict, and what to do first."""
    yield from (_row("kind", "in words", "what to do"), "|---|---|---|")
    for kind, title in KIND_TITLES.items():
        yield _row(f"`{kind}`", title, _steps(BY_KIND[kind]))


def rules() -> Iterator[str]:
    """Every rule that can speak in a verdict but those of sensors and of NCCL; what to do where it differs from the kind's."""
    yield from (_row("rule", "what it saw", "what to do, where it is not what its kind says"), "|---|---|---|")
    for name, (title, saw) in sorted(RULES.items()):
        yield _row(f"`{name}`", f"**{_cell(title)}.** {_cell(saw)}", _steps(BY_RULE.get(name, ())))


def nccl_rules() -> Iterator[str]:
    """Rules that look inside NCCL."""
    yield from (_row("rule", "what it saw"), "|---|---|")
    for name, saw in sorted(NCCL_RULES.items()):
        yield _row(f"`nccl_{name}`", _cell(saw))


def sensor_rules() -> Iterator[str]:
    """The table of health, as it is where no file changes it."""
    yield from (_row("event", "then", "sure", "why"), "|---|---|---|---|")
    for name, rule in sorted(DEFAULTS.items(), key=lambda item: _by_number(item[0])):
        yield _row(f"`{name}`", _then(rule), rule.confidence, _cell(rule.why))


def _then(rule: Rule) -> str:
    return f"{rule.rung}, at {rule.count} within {rule.within_s:g} s" if rule.count > 1 else rule.rung


def _by_number(name: str) -> tuple[str, int]:
    head, _, tail = name.rpartition(".")
    return (head + ".", int(tail)) if tail.isdigit() else (name, 0)


def ladder_rules() -> Iterator[str]:
    """The ladder's rules, in its order."""
    yield from (_row("rule", "what it says"), "|---|---|")
    for name, says in LADDER_RULES.items():
        yield _row(f"`{name}`", _cell(says))


def _steps(steps: tuple[Step, ...]) -> str:
    said = []
    for step in steps:
        command = step.command.replace(" {run}", "").replace("{id}", "N").replace("{node}", "NODE")
        text = _cell(step.text.replace("{node}", "its node"))
        said.append(f"{text.rstrip('.:')}: `{command.replace('{rank}', 'RANK')}`." if command else text)
    return " ".join(said)


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "flags": flags,
    "kinds": kinds,
    "rules": rules,
    "nccl rules": nccl_rules,
    "sensor rules": sensor_rules,
    "ladder rules": ladder_rules,
}


def made_anew(text: str) -> str:
    """Return a page with its generated parts as the code has them now."""

    def part(found: re.Match[str]) -> str:
        name = found.group(1)
        return f"<!-- generated: {name} -->\n\n" + "\n".join(PARTS[name]()).strip() + f"\n\n<!-- end of {name} -->\n"

    return PART.sub(part, text)


def main() -> None:
    """Write all generated parts."""
    for page in sorted(DOCS.glob("*.md")):
        before = page.read_text()
        after = made_anew(before)
        if after != before:
            page.write_text(after)
            sys.stdout.write(f"{page.name}\n")


if __name__ == "__main__":
    main()
