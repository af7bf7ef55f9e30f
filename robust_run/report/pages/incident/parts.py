"""Parts of an incident's page below the answers: what to do, what it cost, its course, its evidence. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from robust_run.report.pages.course import CourseInterval, intervals, milestones
from robust_run.report.pages.markup import breakable, command, join, marked, section, text
from robust_run.report.pages.next_steps import need_of, steps_for
from robust_run.report.pages.rules import meaning_of
from robust_run.report.pages.types import IncidentCost, IncidentPage
from robust_run.report.pages.words import clock_time, count, lasted, number, span
from robust_run.report.types import Evidence

#: Lines of evidence that are open from the start, which are the last ones and fit without scrolling, and those that are kept at all.
OPEN_LINES = 20
MOST_LINES = 400
#: From so many lines of evidence on they can be searched.
SEARCHED_LINES = 12
#: Shorter intervals have no line of their own; their moments are listed.
LEAST_S = 0.005

_SEARCH = (
    "<p class='find screen'><label for=find-lines>Only lines with</label> "
    "<input type=search id=find-lines data-find=evidence autocomplete=off spellcheck=false> "
    "<span class=dim role=status id=find-lines-said></span></p>"
)


def what_next(page: IncidentPage) -> str:
    """Return what to do, with commands."""
    items = join(
        f"<li>{marked(step.text)}{f'<br>{command(step.command)}' if step.command else ''}</li>"
        for step in steps_for(page)
    )
    said, tone = need_of(page)
    need = f"<p class='need {tone}'>{text(said, 400)}</p>" if said else ""
    return f"<h2 id=next-title>What to do next</h2>{need}<ol class=steps>{items}</ol>"


def what_lost(lost: IncidentCost | None) -> str:
    """Return what it cost."""
    head = "<h2 id=lost-title>What it cost</h2>"
    if lost is None:
        return f"{head}<p class=dim>The journal does not say.</p>"
    rows = [("Standstill", lasted(lost.seconds) + ("" if lost.is_over else " so far"))]
    rows.append(("Steps", _steps_lost(lost)))
    total_s = (lost.seconds + lost.redone_s) * lost.ranks
    rows.append(
        (
            "GPU-seconds",
            f"{number(total_s)}<br><span class='dim small'>{count(lost.ranks, 'rank')} × {lasted(lost.seconds + lost.redone_s)}</span>",
        )
    )
    return head + "<dl class=facts>" + join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in rows) + "</dl>"


def _steps_lost(lost: IncidentCost) -> str:
    if lost.steps is None:
        return "not counted"
    if lost.is_most:
        return (
            f"at most {number(lost.steps)}<br><span class='dim small'>all that the attempt had made; how many a checkpoint "
            "kept is not known without <code class=nowrap>--ckpt-dir</code></span>"
        )
    since = f"<br><span class='dim small'>since the last checkpoint, {lasted(lost.redone_s)} of training</span>"
    return f"about {number(lost.steps)}{since}" if lost.steps else f"none{since if lost.redone_s else ''}"


def timeline(page: IncidentPage) -> str:
    """Return the course: each moment with its time, each interval with its name, its seconds and a bar."""
    moments = milestones(page.incident, page.attempt, page.following)
    steps = intervals(moments)
    whole_s = moments[-1].at_s - moments[0].at_s
    onset = moments[0]
    dots = join(
        f"<li><b>{moment.name}</b> <span class=dim>{clock_time(moment.at_s, tenths=True)}"
        f"{f', +{lasted(moment.at_s - onset.at_s)}' if moment is not onset else ''}</span></li>"
        for moment in moments
    )
    longest = max((step.seconds for step in steps), default=0.0)
    rows = join(
        _interval(step, onset.at_s, whole_s, is_longest=step.seconds == longest > 0)
        for step in steps
        if step.seconds >= LEAST_S
    )
    last = {"first step": "to the first step of the next attempt", "ranks went on": "until ranks went on"}
    note = f"{lasted(whole_s)} from the onset {last.get(moments[-1].name, f'to {moments[-1].name}')}."
    return section(
        "timeline", "What happened when", f"<ul class=moments>{dots}</ul><ol class=course>{rows}</ol>", note=note
    )


def _interval(step: CourseInterval, begin_s: float, whole_s: float, *, is_longest: bool) -> str:
    left = 1000 * (step.after.at_s - begin_s) / whole_s if whole_s > 0 else 0.0
    wide = max(3.0, 1000 * step.seconds / whole_s) if whole_s > 0 else 3.0
    return (
        f"<li><div><b>{step.name}</b><small>{step.after.name} → {step.before.name}</small></div>"
        f"<span class=num>{lasted(step.seconds)}</span>"
        f'<svg viewBox="0 0 1000 10" preserveAspectRatio=none aria-hidden=true><rect class=track width=1000 height=10 rx=2 />'
        f'<rect class="bar{" lead" if is_longest else ""}" x="{min(left, 997.0):.1f}" width="{min(wide, 1000 - min(left, 997.0)):.1f}" height=10 rx=2 /></svg></li>'
    )


def evidence(page: IncidentPage) -> str:
    """Return the rule that spoke and all that it rests on."""
    verdict = page.incident.verdict
    facts = [
        (
            "Rule",
            f"<code>{text(verdict.rule, 80)}</code>{' — ' + text(meaning_of(verdict)) if meaning_of(verdict) else ''}",
        ),
        ("Confidence", verdict.confidence),
        ("Symptom", text(page.incident.symptom.replace("_", " "), 80)),
    ]
    if verdict.group:
        facts.append(("Parallel group", breakable(verdict.group, 200)))
    if verdict.over_evicted:
        facts.append(("May be innocent", f"ranks {span(verdict.over_evicted)}"))
    listed = join(f"<dt>{name}</dt><dd>{said}</dd>" for name, said in facts)
    seen = join(_one(each, index, page.files) for index, each in enumerate(page.incident.evidence))
    many = sum(len(each.text.splitlines()) for each in page.incident.evidence) >= SEARCHED_LINES
    return section("evidence", "Evidence and rule", f"<dl class=facts>{listed}</dl>", _SEARCH if many else "", seen)


def _file(path: str, files: Sequence[str]) -> str:
    """Return the name of a file in the run directory; a link to it where it is there."""
    name = f"<code>{breakable(path, 400)}</code>"
    return f"<a href='../{path}'>{name}</a>" if path in files and re.fullmatch(r"[a-z0-9/._]+", path) else name


def _one(each: Evidence, index: int, files: Sequence[str]) -> str:
    lines = each.text.splitlines()[:MOST_LINES]
    what = text(each.what, 120)
    head = f"<h3>{f'Rank {each.rank}: {what}' if each.rank is not None else what[:1].upper() + what[1:]}</h3>"
    path = f"<p class='small dim'>whole file, in the run directory: {_file(each.path, files)}</p>" if each.path else ""
    if not any(line.strip() for line in lines):
        return f"{head}{path or '<p class=dim>nothing was printed</p>'}"
    shown = f"<pre tabindex=0>{_lines(lines[-OPEN_LINES:])}</pre>"
    if len(lines) > OPEN_LINES:
        shown = f"<details id=evidence-{index}><summary>{len(lines) - OPEN_LINES} earlier lines</summary><pre>{_lines(lines[:-OPEN_LINES])}</pre></details>{shown}"
    return f"{head}{shown}{path}"


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(text(line, 2000) for line in lines)
