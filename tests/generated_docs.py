"""Makes the parts of docs/ that are tables of the code: `python tests/generated_docs.py` writes them anew.

A generated part stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`; everything around it is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
from man_pages import man_pages

from robust_run.ckpt_io import notes
from robust_run.ckpt_io.rules import types as ckpt_types
from robust_run.fleet import words as fleet_words
from robust_run.fleet.gauges import families
from robust_run.fleet.results import Fleet
from robust_run.health.checks.history import History
from robust_run.health.ladder.rules import RULES as LADDER_RULES
from robust_run.health.rules.table import DEFAULTS
from robust_run.health.rules.types import HealthRule
from robust_run.launcher.operator.reading import place as api_place
from robust_run.launcher.records.code import types as code_types
from robust_run.launcher.start.options.option_types import GROUPS, HELP, OptionDescription
from robust_run.launcher.start.options.options import HELP_OPTIONS, OPTIONS
from robust_run.orchestrator.rules import course_points as roles_course
from robust_run.prefetch.rules.types import BlockMap, HotList
from robust_run.report import usage as usage_history
from robust_run.report.metrics import PREFIX
from robust_run.report.pages.advice import BY_KIND, BY_RULE, Step
from robust_run.report.pages.rules import KIND_TITLES, NCCL_RULES, RULES
from robust_run.report.startup import types as startup_types
from robust_run.snapshot.rules import types as snapshot_types
from robust_run.snapshot.rules.types import SnapshotManifest
from robust_run.tracer.files import phases, ring_format
from robust_run.version import RUN_DIR_SCHEMA

DOCS = Path(__file__).resolve().parents[1] / "docs"
PART = re.compile(r"<!-- generated: ([a-z ]+) -->\n(.*?)<!-- end of \1 -->\n", re.DOTALL)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _schema_of(kind: type[msgspec.Struct]) -> str:
    """Return the schema and version that files of a kind carry."""
    fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
    return f"`{fields['schema']}` {fields['version']}"


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


def _then(rule: HealthRule) -> str:
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
    return " ".join(map(_step, steps))


def _step(step: Step) -> str:
    """A command that the controller may refuse, and what is said in its place then."""
    command = step.command.replace(" {run}", "").replace("{id}", "N").replace("{node}", "NODE")
    text = _cell(step.text.replace("{node}", "its node"))
    said = f"{text.rstrip('.:')}: `{command.replace('{rank}', 'RANK')}`." if command else text
    other = step.otherwise
    return f"{said} Or: {_step(other)}" if other is not None and other.text != step.text else said


#: What a run directory holds: pattern, what it is, and the schema it carries ("" for text).
RUN_FILES: tuple[tuple[str, str, str], ...] = (
    (".gitignore", "keeps the run out of commits", ""),
    ("journal.jsonl", "what happened and what was done", f"`schema` {RUN_DIR_SCHEMA}"),
    ("attempt_N/RANK/stdout.log", "everything the rank printed; `stderr.log` likewise", ""),
    ("attempt_N/RANK/stderr.log", "the same of its stderr", ""),
    ("attempt_N/RANK/error.json", "of the rank's exception, written by torch's `@record`", "torch's"),
    (
        "attempt_N/RANK/damaged-UUID.json",
        "what the rank found wrong with a checkpoint that it read",
        f"`schema` {notes.DAMAGE_SCHEMA}",
    ),
    (
        "attempt_N/RANK/saved.json",
        "the newest checkpoint that the rank has committed",
        f"`schema` {notes.SAVE_SCHEMA}",
    ),
    (
        "attempt_N/RANK/ring",
        "its last calls and steps, binary; read with `robust timeline`",
        f"version {ring_format.VERSION}",
    ),
    (
        "attempt_N/RANK/phases",
        "what its newest steps consisted of on its GPU, binary; read with `robust timeline`",
        f"version {phases.VERSION}",
    ),
    ("incidents/NNNN.json", "one failure: verdict, evidence, action, times", f"`schema` {RUN_DIR_SCHEMA}"),
    ("incidents/NNNN.html", "its page", ""),
    ("incidents/NNNN.scene.json", "what all ranks did: calls, stacks, processes", "of the incident"),
    ("incidents/NNNN.checks.json", "what checks of the nodes measured after it", "of the incident"),
    ("startup.json", "what each attempt's start was spent on", f"`schema` {startup_types.SCHEMA}"),
    ("usage.json", "how full and busy nodes were, thinned with age", f"`schema` {usage_history.SCHEMA}"),
    ("outcome", "a link that says how a job ended whose journal could not be told (a full disk)", ""),
    ("report.html", "the page of the job, when it is over", ""),
    ("roles.jsonl", "of a job of several roles: what happened and what was decided", f"`schema` {RUN_DIR_SCHEMA}"),
    (
        "roles-course.json",
        "how full queues were, and how long members waited at them, thinned with age",
        f"`schema` {roles_course.SCHEMA}",
    ),
    ("roles.place", "where its workers reach its leader, and the job's secret, mode 0600 (`roles.NODE.place`)", ""),
    ("queues/NAME.queue", "items of a queue, binary", "version 1"),
    ("voters/NODE.log", "journal and queues as a voter of several nodes keeps them, binary", "version 1"),
    ("voters/NODE.json", "its term and its vote", ""),
    ("members/ROLE-N.START/...", "run directory of a member: all of this table", ""),
    ("members/ROLE-N.START.out", "what a member and its workers printed", ""),
    ("timeline.json", "of `robust timeline`: Chrome's trace format", "Chrome's"),
    ("code/objects/XX/DIGEST", "content of a file of your code, by its SHA-256", ""),
    ("code/trees/ID.json", "a version of your code: paths and digests", f"`schema` {code_types.SCHEMA}"),
    ("code/at/ID/...", "that version as files, read-only", ""),
    ("code/at/ROLE/ID/...", "of a job of several roles: the same for each role; its members have links to that", ""),
    ("code/start.json", "of a member: the version that it starts with, where that is not what lies in your folder", ""),
    ("code/in-place/...", "how workers find the version that runs", ""),
    ("image/HOST.json", "how a node's start from an image was (`environment/HOST.json`: with `--prefetch-env`)", ""),
    ("environment/HOST.json", "the same of `--prefetch-env`", ""),
    ("setup/HOST.json", "which set-up a node has: key, packages, how it was restored (`HOST.log`: the installers)", ""),
    ("setup/HOST.log", "what the installers said", ""),
    ("setup/snapshot.json", "the manifest of the job's snapshot", f"`robust-snapshot` {snapshot_types.VERSION}"),
    ("api.json", "where the controller answers", f"`schema` {api_place.SCHEMA}"),
    ("api.sock", "its Unix socket", ""),
    ("token", "the job's secret, mode 0600", ""),
    ("token.read", "a secret with which a job can be read and not be steered, mode 0600", ""),
    ("store.log", "what the store's process printed, normally nothing", ""),
    ("controller.log", "what the controller's process printed, normally nothing", ""),
)

#: What lies elsewhere.
OTHER_FILES: tuple[tuple[str, str, str], ...] = (
    ("CHECKPOINT/MANIFEST", "the commit record of a checkpoint", f"`rrck` {ckpt_types.VERSION}"),
    ("CHECKPOINT/parts-UUID/*.part", "its bytes, in units", f"`rrck` {ckpt_types.VERSION}"),
    (".NAME.restore-journal", "beside a checkpoint that is being restored: units that are done", ""),
    ("IMAGE.blocks.json", "the block map of an image: what each block must be", _schema_of(BlockMap)),
    ("IMAGE.origins.json", "what an image does not keep of what it was built of", "`robust-origins` 1"),
    ("IMAGE.hot/*.json", "hot lists: what starts read of it, in order", _schema_of(HotList)),
    ("~/.cache/robust-run/environments/*", "the same of environments (`--prefetch-env`)", "`robust-hot-files` 1"),
    ("STORE/KEY/snapshot.json", "the manifest of a snapshot of dependencies", _schema_of(SnapshotManifest)),
    ("STORE/KEY/SHA256.sqsh", "its files, as squashfs", "squashfs"),
    ("--evict-list FILE", "evicted nodes, a line each: JSON, or a name and why", ""),
    (
        "LOG_DIR/.fleet/BEGAN-RUN_ID.json",
        "what is kept of a run that is over, for `robust fleet`, `--standby auto` and `robust plan --from`",
        f"`schema` {fleet_words.SCHEMA}",
    ),
    (
        "~/.local/state/robust-run/checks.json",
        "what nodes of this fleet measured before",
        f"`schema` {History().schema}",
    ),
    (
        "LOG_DIR/.rendezvous-UID/JOB-NNNNNN.json",
        "which run a job had last, for nodes that come back (`--controller-standby`)",
        "`schema` 1",
    ),
    (
        "/var/tmp/robust-run-UID/rendezvous/HOST/JOB.AGENT.json",
        "on each node: the run that it has a part in, until that is over",
        "`schema` 1",
    ),
    ("~/.config/robust-run/token", "your secret, mode 0600", ""),
)


def _files(table: tuple[tuple[str, str, str], ...]) -> Iterator[str]:
    yield from (_row("file", "what it is", "schema"), "|---|---|---|")
    for name, what, schema in table:
        yield _row(f"`{name}`", what, schema)


def fleet_metrics() -> Iterator[str]:
    """What `robust fleet --prometheus` writes."""
    yield from (_row("figure", "labels", "what it says"), "|---|---|---|")
    for family in families(Fleet()):
        yield _row(f"`{PREFIX}{family.name}`", ", ".join(f"`{label}`" for label in family.labels), _cell(family.about))


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "flags": flags,
    "kinds": kinds,
    "rules": rules,
    "nccl rules": nccl_rules,
    "sensor rules": sensor_rules,
    "ladder rules": ladder_rules,
    "files": lambda: _files(RUN_FILES),
    "files elsewhere": lambda: _files(OTHER_FILES),
    "fleet metrics": fleet_metrics,
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
    for name, text in man_pages().items():
        path = DOCS / "man" / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            sys.stdout.write(f"man/{name}\n")


if __name__ == "__main__":
    main()
