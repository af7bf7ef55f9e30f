"""The last words of a job."""

from __future__ import annotations

import msgspec

from robust_run.report import summary
from robust_run.report.types import Action, Evidence, Incident, Verdict


def incident(nodes: tuple[str, ...]) -> Incident:
    verdict = Verdict(kind="code", ranks=(1,), nodes=nodes, confidence="high", rule="test", sentence="rank 1 failed")
    return Incident(
        id=1,
        attempt=1,
        symptom="exit",
        onset_s=0.0,
        detected_s=0.0,
        decided_s=0.0,
        verdict=verdict,
        action=Action(name="stop", reason="no restarts left"),
        evidence=(Evidence(what="stderr", rank=1, path="attempt_1/1/stderr.log", text="Boom"),),
    )


def test_a_log_that_is_here_is_named_as_a_path() -> None:
    lines = summary.failure_lines(incident(("node-1",)), 2, 1.0, "robust-runs/run", is_here=lambda _: True)
    assert "  whole log: robust-runs/run/attempt_1/1/stderr.log" in lines


def test_a_log_on_another_node_is_named_with_its_node() -> None:
    lines = summary.failure_lines(incident(("node-1",)), 2, 1.0, "robust-runs/run", is_here=lambda _: False)
    assert "  whole log, on node-1: attempt_1/1/stderr.log in its run directory" in lines
    unnamed = summary.failure_lines(incident(()), 2, 1.0, "robust-runs/run", is_here=lambda _: False)
    assert any(line.startswith("  whole log, on the node of that rank: ") for line in unnamed)


def test_why_something_is_only_reported_is_not_said_twice() -> None:
    found = incident(("node-1",))
    action = msgspec.structs.replace(found.action, name="report", reason="the job has no other node")
    verdict = msgspec.structs.replace(found.verdict, sentence="bad; not evicted: the job has no other node")
    line = summary.incident_line(msgspec.structs.replace(found, action=action, verdict=verdict))
    assert line.count("the job has no other node") == 1


def test_pythons_stack_is_quoted_rather_than_the_c_stack_after_it() -> None:
    """Python 3.14 prints both when a signal ends it, and the second is as long as what is quoted."""
    python = ["Fatal Python error: Segmentation fault", "", "Current thread 0x7f [python] (most recent call first):"]
    python.append('  File "train.py", line 5 in <module>')
    short, long = ([summary.C_STACK, *['  Binary file "libc.so.6", at +0x29fba [0x7f]'] * count] for count in (3, 20))
    assert summary.last_lines("\n".join([*python, "", *short])) == [*python, "", *short]
    assert summary.last_lines("\n".join([*python, "", *long, "", "Extension modules: numpy (total: 1)"])) == python
    assert summary.last_lines("\n".join(long)) == long[-summary.QUOTED_LINES :]
