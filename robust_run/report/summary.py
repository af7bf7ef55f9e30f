"""The few lines a person sees on the terminal: at an incident, and at the end. Pure."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.report.types import Incident

#: Lines of a failed rank's stderr that the last summary quotes.
QUOTED_LINES = 20
#: What evidence is called that was looked at, not printed by a rank.
SEEN = "what was seen"
#: What Python 3.14 prints after its own stack when a fatal signal ends it, with up to 32 lines of addresses below.
C_STACK = "Current thread's C stack trace (most recent call first):"


def incident_line(incident: Incident) -> str:
    """Return what is said when a failure has been judged and the job goes on."""
    is_said = bool(incident.action.reason) and incident.action.reason in incident.verdict.sentence
    only = f" (reported only: {incident.action.reason})" if incident.action.name == "report" and not is_said else ""
    return f"attempt {incident.attempt}: {incident.verdict.sentence}{only}"


def went_on_line(attempt: int, stood_s: float) -> str:
    """Return what is said when ranks go on of which it was reported that they wait."""
    return f"attempt {attempt}: its ranks go on, after a standstill of {duration(max(stood_s, 0.0))}"


def relaunch_line(attempt: int, reason: str, how: tuple[str, ...], why: str) -> str:
    """Return what is said when the next attempt has been started."""
    ways = {"promote": "promoted", "fork": "forked", "spawn": "spawned"}
    counted = [(sum(rung == way for rung in how), word) for way, word in ways.items()]
    workers = " and ".join(f"{count} {word}" for count, word in counted if count)
    return f"relaunched as attempt {attempt} ({reason}), workers: {workers}{': ' + why if why else ''}"


def failure_lines(
    incident: Incident,
    attempts: int,
    lived_s: float,
    folder: str,
    is_here: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Return the closing lines of a failed job: verdict, last words, where the logs are, what was done.

    `is_here`: whether a file of the run directory is on this machine; ranks of other nodes may have theirs there alone.
    """
    tries = f"{attempts} attempts" if attempts > 1 else "1 attempt"
    lines = [f"FAILED after {tries} ({duration(lived_s)}): {incident.verdict.sentence}"]
    for evidence in incident.evidence:
        if evidence.text:
            heading = "what was seen" if evidence.what == SEEN else "last lines of its stderr"
            lines += [f"  {heading}:"] + [f"  | {line}" for line in last_lines(evidence.text)]
        if evidence.path:
            whole = evidence.path if evidence.text else evidence.path.rpartition("/")[0] + "/"
            if is_here(evidence.path):
                lines.append(f"  whole log: {folder}/{whole}")
            else:
                lines.append(f"  whole log, on {_home(incident)}: {whole} in its run directory")
    lines.append(f"  not restarted: {incident.action.reason}")
    return lines


def _home(incident: Incident) -> str:
    return " or ".join(incident.verdict.nodes[:2]) or "the node of that rank"


def last_lines(text: str) -> list[str]:
    """Return the last lines that fit a screen, without empty ones at the end. Python's stack is shown rather than that of C."""
    lines = text.rstrip().splitlines()
    if len(lines) > QUOTED_LINES:
        lines = text.partition(C_STACK)[0].rstrip().splitlines() or lines
    return lines[-QUOTED_LINES:]


def done_line(nproc: int, restarts: int, lived_s: float) -> str:
    """Return the closing line of a job that finished after it was healed."""
    ranks = f"{nproc} ranks" if nproc > 1 else "1 rank"
    again = f"after {restarts} restart{'s' if restarts > 1 else ''}" if restarts else "without a restart"
    return f"done: {ranks} finished {again} in {duration(lived_s)}"


def duration(seconds: float) -> str:
    """Return `4.2 s`, `3 min 10 s` or `2 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
