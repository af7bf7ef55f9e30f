"""The answers of an incident's page: culprit, cause and action side by side, and the verdict as its title. Pure."""

from __future__ import annotations

import re

from robust_run.report.effective import Standstill
from robust_run.report.pages.course import standstill_of
from robust_run.report.pages.markup import breakable, join, marked, text
from robust_run.report.pages.rules import meaning_of, title_of
from robust_run.report.pages.states import RankState, place_of, places_of, ranks_on
from robust_run.report.pages.types import IncidentPage
from robust_run.report.pages.words import count, lasted, span
from robust_run.report.types import Verdict


def answers(page: IncidentPage, states: dict[int, RankState]) -> str:
    """Return culprit, cause and action side by side: what a new reader must see first."""
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
        return "none", "it was asked for"
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
            return text(_cut(lines[-1].strip(), 160))
        if lines and verdict.kind == "mismatch" and evidence.what == "what was seen":
            return text(_cut(_shortened(lines[0].partition(": ")[2] or lines[0]), 160))
    predicate = re.match(r"rank \d+ (?:\([^)]*\) )?(.*)", parted_sentence(page)[0])
    if verdict.kind in ("crash", "stopped") and predicate is not None:
        return text(predicate.group(1), 200)
    return text(meaning_of(verdict), 200)


def _cut(said: str, most: int) -> str:
    """Return what fits: the whole of it stands elsewhere on the page."""
    return said if len(said) <= most else f"{said[: most - 1].rstrip()}…"


def _shortened(line: str) -> str:
    """Return a line with the names of files, without their folders."""
    return re.sub(r"(?<!\S)/\S*/(?=[^/\s]+:\d)", "at ", line).strip()


#: Characters of a verdict that stand in large type as one; of a longer one, what follows its first clause is smaller.
LARGE = 110

#: Verdicts whose sentence quotes what a program said, which may hold any punctuation.
_QUOTING = frozenset({"code", "crash", "nan"})


def parted_sentence(page: IncidentPage) -> tuple[str, str]:
    """Return the verdict and what was joined to it with a semicolon, without nodes: the culprit's place is said beside it.

    Of a mismatch what the others called is joined to it, and of a long one of a crash, what follows the last colon that fits is joined to it, too, unless it is said there anyway.
    """
    head, rest = _parted(page.incident.verdict)
    if len(head) > LARGE and page.incident.verdict.kind == "mismatch":
        head, _, others = head.partition(", where ")
        return head, "; ".join(filter(None, (others, rest)))
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
    stood = standstill_of(incident, page.attempt)
    if stood is not None:
        said.append(_of_standstill(page, stood))
    elif incident.resumed_s is not None:
        said.append(
            f"<span class=good>training again {lasted(incident.resumed_s - incident.onset_s)} after the onset</span>"
        )
    elif incident.action.name not in ("stop", "report"):
        said.append(_without_step(page))
    if incident.action.reason:
        said.append(marked(_cut(incident.action.reason.replace(incident.verdict.sentence, "the same"), 240)))
    if following is not None and following.places:
        said.append(count(len(following.places), "node") + ", " + count(following.world_size, "rank"))
    return done, " · ".join(said)


def _of_standstill(page: IncidentPage, stood: Standstill) -> str:
    """Return whether ranks went on of which it was reported that they wait."""
    if stood.end_s is not None:
        return f"<span class=good>ranks went on {lasted(stood.end_s - stood.begin_s)} after the onset</span>"
    goes_on = page.drawn.is_live and page.attempt is not None and page.attempt.standing is not None
    return "no rank has gone on since" if goes_on else "no rank went on in this attempt"


def _without_step(page: IncidentPage) -> str:
    """Return how it went on without a step: perhaps none can be counted, of a program that makes none through torch."""
    struck, following = page.attempt, page.following
    counts = struck is None or struck.first_step_s is not None
    if following is not None and following.started_s is not None and not counts:
        up_s = max(following.started_s - page.incident.onset_s, 0.0)
        return f"workers up again {lasted(up_s)} after the onset; no step is counted"
    return "no step since then" if page.drawn.is_live else "no step was made after it"
