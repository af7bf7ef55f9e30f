"""What a site's settings mean for jobs that outlive their nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from robust_run.robust_cli import robust
from robust_run.slurm.doctor import too_many
from robust_run.slurm.rules.site import SiteFinding, judge_config, judge_version, read_config
from robust_run.slurm.rules.site_nodes import NodeSaid, judge_nodes
from robust_run.slurm.tools import CommandResult

CONFIG = """Configuration data as of 2026-11-22T01:34:17
AuthInfo                = socket=/run/munge.socket.2,cred_expire=5
JobRequeue              = 1
KillOnBadExit           = 0
KillWait                = 30 sec
MpiDefault              = none
PreemptMode             = OFF
ProctrackType           = proctrack/cgroup
SlurmdTimeout           = 300 sec
SlurmctldParameters     = (null)
TaskPlugin              = task/none
WaitTime                = 0 sec

Slurmctld(primary) at login is UP
"""


def kinds(findings: list[SiteFinding]) -> dict[str, str]:
    return {finding.what.partition("=")[0]: finding.kind for finding in findings}


def test_a_site_as_jobs_like_it() -> None:
    findings = judge_config(read_config(CONFIG))
    assert len(findings) == 11
    assert set(kinds(findings).values()) == {"ok"}
    assert str(findings[0]) == "ok        KillOnBadExit=0"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("KillOnBadExit = 1", "give -K0 to srun"),
        ("WaitTime = 30 sec", "give -W0 to srun"),
        ("JobRequeue = 0", "give --requeue to sbatch"),
        ("MpiDefault = pmix", "give --mpi=none"),
        ("SlurmdTimeout = 0 sec", "Slurm never notices that a node is dead"),
        ("KillWait = 5 sec", "5 s from SIGTERM to SIGKILL"),
        ("ProctrackType = proctrack/pgid", "ask for proctrack/cgroup"),
        ("PreemptMode = GANG,SUSPEND", "goes on from its last checkpoint"),
        ("PreemptMode = CANCEL", "not put back into the queue"),
    ],
)
def test_a_setting_that_needs_care(line: str, advice: str) -> None:
    (finding,) = judge_config(read_config(line))
    assert finding.kind == "warning"
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("slurm 19.05.8", "bad"),
        ("slurm 21.08.1", "warning"),
        ("slurm-wlm 22.05.8", "ok"),
        ("slurm 24.11.0-0rc1", "ok"),
        ("?", "warning"),
    ],
)
def test_versions(text: str, kind: str) -> None:
    assert judge_version(text).kind == kind


@given(st.text(max_size=300))
def test_anything_can_be_judged(text: str) -> None:
    assert all(
        finding.kind in ("ok", "warning", "bad") for finding in [judge_version(text), *judge_config(read_config(text))]
    )


def node(number: int, **more: object) -> NodeSaid:
    return NodeSaid(**{"name": f"n{number}", "fuse": True, "scontrol": True, "robust_run": True, **more})  # type: ignore[arg-type]


def test_nodes_that_reach_each_other() -> None:
    findings = judge_nodes([node(1), node(2)], 2, "/shared/x")
    assert {finding.kind for finding in findings} == {"ok"}
    assert "ok        TCP between 2 nodes" in map(str, findings)


def test_nodes_that_do_not() -> None:
    findings = judge_nodes(
        [node(1, unreachable=("n2",)), node(2, unheard=("task 3",)), node(3, fuse=False)], 3, "/home/me/x"
    )
    said = [str(finding) for finding in findings]
    assert said[0].startswith("bad       /home/me on n2: do not see the files of the others")
    assert said[1].startswith("bad       n1 to n2: no TCP connection")
    assert "warning   /dev/fuse on n3: not usable: images are copied instead of mounted" in said


def test_of_nodes_that_said_nothing_nothing_is_ok() -> None:
    told = [node(number, task=number - 1, nodes="n[1-4]", unheard=("task 1", "task 3")) for number in (1, 3)]
    said = [str(finding) for finding in judge_nodes(told, 4, "/shared/x")]
    assert said == [
        "no answer n2, n4 (2 of 4 nodes): said nothing, so nothing is known of them; srun -w n2 hostname says more",
        "ok        /shared: shared by 2 of 4 nodes",
        "ok        TCP between 2 of 4 nodes",
        "ok        robust-run on 2 of 4 nodes",
        "ok        scontrol on 2 of 4 nodes",
        "ok        /dev/fuse on 2 of 4 nodes",
    ], "and the folder is not to blame for what was never written there"


def test_what_one_node_alone_says_tells_nothing_of_the_way_to_others() -> None:
    said = [str(finding) for finding in judge_nodes([node(1, task=0)], 2, "/shared/x")]
    assert said[0].startswith("no answer 1 of 2 nodes: said nothing")
    assert not any("TCP" in line or "/shared" in line for line in said)


def test_a_node_that_does_not_answer_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SiteFinding("no answer", "n2 (1 of 2 nodes)", "said nothing")
    monkeypatch.setattr("robust_run.slurm.doctor.examine", lambda *_: [silent])
    ran = CliRunner().invoke(robust, ["slurm", "doctor"], standalone_mode=False)
    assert (ran.return_value, ran.stdout) == (1, "no answer n2 (1 of 2 nodes): said nothing\n")


def test_nodes_are_named_in_their_order_whichever_speaks_first() -> None:
    said = judge_nodes([node(10, unreachable=("n9",)), node(9, unreachable=("n10",))], 2, "/home/me/x")
    assert "bad       n9 to n10; n10 to n9: no TCP connection" in str(said[1])


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        (CommandResult(0, "3\n2\n"), True),
        (CommandResult(0, "6\n"), False),
        (CommandResult(1), False),
        (CommandResult(0, "many"), False),
    ],
)
def test_a_step_on_more_nodes_than_there_are_is_refused_at_once(said: CommandResult, refused: bool) -> None:
    tools: Any = SimpleNamespace(find=lambda name: name, run=lambda *_: said)
    found = too_many(tools, {}, 6)
    assert (found is not None and "the site has 5" in str(found)) is refused
