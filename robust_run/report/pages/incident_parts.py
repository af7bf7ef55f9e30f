"""Parts of an incident's page: the answer, what to do, what it cost, its course, its evidence. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from robust_run.report.pages.advice import steps_for
from robust_run.report.pages.course import Interval, intervals, milestones
from robust_run.report.pages.markup import breakable, command, join, section, text
from robust_run.report.pages.rules import meaning_of, title_of
from robust_run.report.pages.states import RankState, place_of, places_of, ranks_on
from robust_run.report.pages.types import IncidentPage, Lost
from robust_run.report.pages.words import clock_time, count, lasted, number, span
from robust_run.report.types import Evidence, Verdict

#: Lines of evidence that are open from the start, and those that are kept at all.
OPEN_LINES = 40
MOST_LINES = 400
#: Shorter intervals have no line of their own; their moments are listed.
LEAST_S = 0.005


def answers(page: IncidentPage, states: dict[int, RankState]) -> str:
    """Return culprit, cause and action side by side: what somebody new must see first."""
    verdict = page.incident.verdict
    tone = "plain" if not (verdict.ranks or verdict.nodes) or verdict.rule == "operator" else ""
    tone = tone or ("soft" if verdict.confidence == "low" or verdict.over_evicted else "")
    culprit, where = _culprit(page)
    cause = _detail(page, states)
    done, after = _action(page)
    cells = (("Culprit", culprit, where, "first"), ("Cause", title_of(verdict), cause, ""), ("Action", done, after, ""))
    return (
        f"<div class='answers {tone}' role=list>"
        + join(
            f"<div class='{css}' role=listitem><div class=label>{label}</div><strong>{breakable(strong[:1].upper() + strong[1:], 160)}</strong>"
            f"{f'<small>{small}</small>' if small else ''}</div>"
            for label, strong, small, css in cells
        )
        + "</div>"
    )


def _culprit(page: IncidentPage) -> tuple[str, str]:
    verdict = page.incident.verdict
    nodes = verdict.nodes
    where = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    if verdict.rule == "operator":
        return "nobody", "it was asked for"
    if page.incident.action.name == "rollback" and page.incident.verdict.kind not in ("hang", "crash"):
        number = page.attempt.code if page.attempt is not None else 0
        first = f"code version {number}" if number else "the new version of the code"
        seen = f"seen on rank{'' if len(verdict.ranks) == 1 else 's'} {span(verdict.ranks)}" if verdict.ranks else ""
        return first, text(f"{seen}{' on ' + where if seen and where else ''}", 200)
    if not verdict.ranks:
        if not nodes:
            return ("the program" if verdict.kind == "code" else "not known"), ""
        on = ranks_on(places_of(page), nodes)
        return (
            f"node {where}" if len(nodes) == 1 else f"{len(nodes)} nodes",
            text(f"{'' if len(nodes) == 1 else where + ': '}{'had ranks ' + span(on) if on else ''}", 200),
        )
    whole_node = verdict.kind in ("node_lost", "node_fault") and nodes
    who = f"rank {verdict.ranks[0]}" if len(verdict.ranks) == 1 else f"ranks {span(verdict.ranks)}"
    if whole_node:
        return (f"node {where}" if len(nodes) == 1 else f"{len(nodes)} nodes"), text(f"had {who}", 200)
    said = [f"on node {where}" if nodes else "", _device(page)]
    innocent = len(verdict.over_evicted)
    if innocent:
        said.append(f"{innocent} of {len(verdict.ranks)} may be innocent")
    elif verdict.confidence != "high":
        said.append(f"{verdict.confidence} confidence")
    return who, text(" · ".join(filter(None, said)), 300)


def _device(page: IncidentPage) -> str:
    """Return the GPU of a single culprit: by custom that of its local rank, where the job is seen to use GPUs."""
    verdict = page.incident.verdict
    if len(verdict.ranks) != 1:
        return ""
    place = place_of(places_of(page), verdict.ranks[0])
    if place is None:
        return ""
    local = verdict.ranks[0] - place.first_rank
    sights = page.scene.ranks if page.scene is not None else ()
    on_gpu = (
        verdict.rule == "accelerator"
        or verdict.rule.startswith("nccl_")
        or any(one.nccl is not None for one in sights[:64])
    )
    on_gpu = on_gpu or any("CUDA" in each.text or "NCCL" in each.text for each in page.incident.evidence)
    return f"GPU {local}" if on_gpu else f"local rank {local}"


def _detail(page: IncidentPage, states: dict[int, RankState]) -> str:
    verdict = page.incident.verdict
    if len(verdict.ranks) == 1:
        known = states.get(verdict.ranks[0])
        if known is not None and known.doing and verdict.kind in ("hang", "stopped"):
            return text(known.doing, 160)
    for evidence in page.incident.evidence:
        lines = [line for line in evidence.text.splitlines() if line.strip()]
        if lines and verdict.kind in ("code", "crash", "nan") and not lines[-1].startswith((" ", "\t")):
            return text(lines[-1].strip(), 160)
        if lines and verdict.kind == "mismatch" and evidence.what == "what was seen":
            return text(_shortened(lines[0].partition(": ")[2] or lines[0]), 160)
    predicate = re.match(r"rank \d+ (?:\([^)]*\) )?(.*)", parted_sentence(page)[0])
    if verdict.kind in ("crash", "stopped") and predicate is not None:
        return text(predicate.group(1), 200)
    return text(meaning_of(verdict), 200)


def _shortened(line: str) -> str:
    """Return a line with the names of files, without their folders."""
    return re.sub(r"(?<!\S)/\S*/(?=[^/\s]+:\d)", "at ", line).strip()


#: Characters of a verdict that stand in large type as one; of a longer one, what follows its first clause is smaller.
LARGE = 110

#: Verdicts whose sentence quotes what a program said, which may hold any punctuation.
_QUOTING = frozenset({"code", "crash", "nan"})


def parted_sentence(page: IncidentPage) -> tuple[str, str]:
    """Return the verdict and what was joined to it with a semicolon, without nodes: the culprit's place is said beside it.

    Of a long one of a crash, what follows the last colon that fits is joined to it, too, unless it is said there anyway.
    """
    head, rest = _parted(page.incident.verdict)
    cut = head.rfind(": ", 0, LARGE)
    if len(head) <= LARGE or cut < 0 or page.incident.verdict.kind != "crash":
        return head, rest
    head, more = head[:cut], head[cut + 2 :]
    return head, rest if more in rest else "; ".join(filter(None, (more, rest)))


def _parted(verdict: Verdict) -> tuple[str, str]:
    if verdict.nodes and verdict.ranks:
        where = f" on {', '.join(verdict.nodes)}"
        head, joint, rest = verdict.sentence.partition(f"{where}; ")
        if joint:
            return head, rest
        head = verdict.sentence.replace(where, "", 1)
    else:
        head = verdict.sentence
    if verdict.kind in _QUOTING:
        return head, ""
    head, _, rest = head.partition("; ")
    return head, rest


_DONE = {
    "relaunch": "Relaunched",
    "evict": "Node evicted",
    "rollback": "Code rolled back",
    "replay": "Replayed",
    "diagnose": "Being diagnosed",
    "stop": "Job stopped",
    "report": "Reported only",
}


def _action(page: IncidentPage) -> tuple[str, str]:
    incident = page.incident
    done = _DONE.get(incident.action.name, incident.action.name)
    if incident.action.name == "relaunch" and incident.verdict.kind == "node_lost":
        done = "Relaunched without it"
    if incident.action.name == "diagnose" and not page.drawn.is_live:
        done = "Nodes were checked"
    following, said = page.following, []
    if following is not None and incident.action.name in ("relaunch", "evict", "rollback"):
        again = "as" if incident.action.name == "relaunch" else "relaunched as"
        said.append(f"{again} attempt {following.number}")
    if incident.resumed_s is not None:
        said.append(
            f"<span class=good>training again {lasted(incident.resumed_s - incident.onset_s)} after the onset</span>"
        )
    elif incident.action.name not in ("stop", "report"):
        said.append(_without_step(page))
    if incident.action.reason:
        said.append(text(incident.action.reason, 240))
    if following is not None and following.places:
        said.append(count(len(following.places), "node") + ", " + count(following.world_size, "rank"))
    return done, " · ".join(said)


def _without_step(page: IncidentPage) -> str:
    """Return how it went on without a step: perhaps none can be counted, of a program that makes none through torch."""
    struck, following = page.attempt, page.following
    counts = struck is None or struck.first_step_s is not None
    if following is not None and following.started_s is not None and not counts:
        up_s = max(following.started_s - page.incident.onset_s, 0.0)
        return f"workers up again {lasted(up_s)} after the onset; no step is counted"
    return "no step since then" if page.drawn.is_live else "no step was made after it"


def what_next(page: IncidentPage) -> str:
    """Return what to do, with commands."""
    items = join(
        f"<li>{_marked(step.text)}{f'<br>{command(step.command)}' if step.command else ''}</li>"
        for step in steps_for(page)
    )
    return f"<h2 id=next-title>What to do next</h2><ol class=steps>{items}</ol>"


def _marked(advice: str) -> str:
    """Return advice with options of commands set as such."""
    return re.sub(r"(?<![\w-])(--[a-z-]+(?: [A-Z]+| report| evict)?)", r"<code class=nowrap>\1</code>", text(advice))


def what_lost(lost: Lost | None) -> str:
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


def _steps_lost(lost: Lost) -> str:
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
    note = f"{lasted(whole_s)} from the onset to {'the first step of the next attempt' if moments[-1].name == 'first step' else moments[-1].name}."
    return section(
        "timeline", "What happened when", f"<ul class=moments>{dots}</ul><ol class=course>{rows}</ol>", note=note
    )


def _interval(step: Interval, begin_s: float, whole_s: float, *, is_longest: bool) -> str:
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
    seen = join(_one(each, index) for index, each in enumerate(page.incident.evidence))
    return section("evidence", "Evidence and rule", f"<dl class=facts>{listed}</dl>", seen)


def _one(each: Evidence, index: int) -> str:
    lines = each.text.splitlines()[:MOST_LINES]
    what = text(each.what, 120)
    head = f"<h3>{f'Rank {each.rank}: {what}' if each.rank is not None else what[:1].upper() + what[1:]}</h3>"
    path = (
        f"<p class='small dim'>whole file, in the run directory: <code>{breakable(each.path, 400)}</code></p>"
        if each.path
        else ""
    )
    if not any(line.strip() for line in lines):
        return f"{head}{path or '<p class=dim>nothing was printed</p>'}"
    shown = f"<pre tabindex=0>{_lines(lines[-OPEN_LINES:])}</pre>"
    if len(lines) > OPEN_LINES:
        shown = f"<details id=evidence-{index}><summary>{len(lines) - OPEN_LINES} earlier lines</summary><pre>{_lines(lines[:-OPEN_LINES])}</pre></details>{shown}"
    return f"{head}{shown}{path}"


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(text(line, 2000) for line in lines)
