"""`robust why | stacks | incident | timeline` as a user types them, over what is seen of three ranks of which one is stuck."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from robust_run.errors import PlatformError
from robust_run.launcher.model.actions import RecordIncident
from robust_run.launcher.model.job import VerdictDraft
from robust_run.launcher.operator.views.operations import OperatorWish
from robust_run.report.files import incident as incident_file
from robust_run.tracer.types import Frame, Group, Op, ProcessSight, RankSight, RankTrace, Scene, ThreadStack

Serve = Callable[..., Any]
Robust = Callable[..., subprocess.CompletedProcess[str]]

WORLD = Group(name="0", desc="default_pg", ranks=(0, 1, 2))
IN_WAIT = (
    Frame("all_reduce", "/site-packages/torch/distributed/distributed_c10d.py", 3252),
    Frame("train", "/home/ann/train.py", 40),
)
IN_DATA = (Frame("get", "/home/ann/data.py", 88), Frame("train", "/home/ann/train.py", 38))


def sight(rank: int) -> RankSight:
    """Rank 1 never came to the fourth all_reduce."""
    is_stuck = rank == 1
    ops = [
        Op(group="0", op="all_reduce", seq=seq, state="done", at_s=90.0 + seq, done_at_s=90.5 + seq)
        for seq in (1, 2, 3)
    ]
    if not is_stuck:
        ops.append(Op(group="0", op="all_reduce", seq=4, state="waiting", at_s=94.0, waiting_at_s=94.0))
    trace = RankTrace(
        rank=rank,
        world_size=3,
        pid=100 + rank,
        steps=3,
        last_at_s=94.0,
        blocked_s=1.5,
        ops=tuple(ops),
        groups=(WORLD,),
    )
    stack = ThreadStack(is_main=True, frames=IN_DATA if is_stuck else IN_WAIT)
    process = ProcessSight(
        pid=100 + rank, parent=1, is_rank=True, command="python train.py", state="S", stacks=((stack,),) * 3
    )
    return RankSight(rank=rank, node=f"gpu-{rank}", trace=trace, processes=(process,))


SCENE = Scene(at_s=100.0, attempt=0, world_size=3, ranks=tuple(map(sight, range(3))))


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def served(serve: Serve) -> Any:
    made = serve()
    made.controller.scene = SCENE
    return made


def test_why_names_who_is_awaited_and_what_would_be_concluded(served: Any, robust: Robust) -> None:
    lines = done(robust("why")).splitlines()
    assert lines[0] == (
        "rank 1 has been waited for in all_reduce #4 of the world for 6.0 s: ranks 0,2 ← rank 1 (gpu-1, data.py:88 get)"
    )
    assert lines[-1].startswith("if this goes on: rank 1 (node gpu-1) never joined all_reduce #4")
    assert "data.py:88 get" in lines[-1]
    assert served.controller.samples == [3], "whether it moves shows only in several looks"


def test_stacks_show_the_odd_one_first_and_those_alike_together(served: Any, robust: Robust) -> None:
    lines = done(robust("stacks")).splitlines()
    assert lines[0] == "1 rank (1): asleep in data.py:88 get"
    assert "data.py" in lines[1]
    assert "2 ranks (0,2): in communication" in lines


def test_stacks_of_one_rank_show_its_processes_and_threads(served: Any, robust: Robust) -> None:
    text = done(robust("stacks", "--rank", "1"))
    assert "rank 1 on gpu-1" in text
    assert "process 101 (python train.py) sleeps" in text
    assert "/home/ann/data.py:88 get" in text
    wrong = robust("stacks", "--rank", "9")
    assert (wrong.returncode, wrong.stderr) == (2, "robust: --rank 9: the job has ranks 0 to 2\n")


def test_all_of_it_is_to_be_had_as_json(served: Any, robust: Robust) -> None:
    why = done(robust("why", "--json"))
    assert msgspec.json.decode(why, type=Scene) == SCENE
    (chain,) = msgspec.json.decode(why)["chains"]
    assert (chain["ranks"], chain["waiters"], chain["is_circle"]) == ([1], [0, 2], False)
    assert chain["line"] == done(robust("why")).splitlines()[0]
    assert msgspec.json.decode(done(robust("stacks", "--json")), type=Scene) == SCENE
    assert msgspec.json.decode(done(robust("stacks", "--rank", "1", "--json")), type=RankSight) == SCENE.ranks[1]


def test_where_nothing_runs_it_says_so(serve: Serve, robust: Robust) -> None:
    serve()
    for command in ("why", "stacks"):
        result = robust(command)
        assert (result.returncode, result.stderr) == (1, "robust: no rank runs now: the job is running\n")


def test_rings_are_copied_on_demand(served: Any) -> None:
    served.unix().post("/v1/traces", OperatorWish())
    assert served.controller.kept == 1
    served.controller.scene = None
    with pytest.raises(PlatformError, match="no rank runs now"):
        served.unix().post("/v1/traces", OperatorWish())


def happened(served: Any) -> None:
    served.controller.records(
        RecordIncident(
            attempt=0,
            symptom="hang",
            onset_at_s=5.0,
            detected_at_s=10.0,
            verdict=VerdictDraft(
                kind="hang",
                ranks=(1,),
                nodes=("gpu-1",),
                confidence="high",
                rule="wait_graph",
                sentence="rank 1 never joined all_reduce #4",
                exit_code=1,
            ),
            action="relaunch",
            reason="restart 1 of 3 without progress",
        )
    )


def test_an_incident_of_a_live_job(served: Any, robust: Robust) -> None:
    assert robust("incident").stderr == "robust: no incident so far\n"
    happened(served)
    lines = done(robust("incident")).splitlines()
    assert lines[1] == "  rank 1 never joined all_reduce #4"
    assert lines[2] == "  verdict: hang, high confidence, rule wait_graph, ranks 1, gpu-1"
    assert done(robust("incident", "1")).splitlines() == lines
    assert json.loads(done(robust("incident", "1", "--json")))["verdict"]["kind"] == "hang"
    assert len(json.loads(done(robust("incident", "--all", "--json")))["incidents"]) == 1
    assert robust("incident", "2").stderr == "robust: there is no incident '2'; there are 1 to 1\n"


def test_of_a_dead_job_the_last_incident_says_why(served: Any, robust: Robust) -> None:
    happened(served)
    folder = Path(served.run_directory)
    incident_file.write(str(folder / "incidents" / "0001.json"), served.controller.incidents()[0])
    incident_file.write_scene(str(folder / "incidents" / "0001.scene.json"), SCENE)
    served.end()
    for command in (("why",), ("incident",), ("incident", "1", "run")):
        text = done(robust(*command))
        assert "  rank 1 never joined all_reduce #4" in text
        assert "  who waited for whom:" in text
    assert robust("stacks").returncode == 1


def test_of_a_job_that_is_not_known_to_be_over_it_is_said_first_how_it_is(
    make_controller: Callable[..., Any], robust: Robust, run_directory: Path
) -> None:
    left = make_controller().start()  # its journal ends here, and nothing answers
    happened(SimpleNamespace(controller=left))
    incident_file.write(str(run_directory / "incidents" / "0001.json"), left.incidents()[0])
    first, *rest = done(robust("why")).splitlines()
    assert first == done(robust("status")).splitlines()[0]
    assert "last known: " in first
    assert "  rank 1 never joined all_reduce #4" in rest


def test_where_nothing_runs_only_what_there_is_is_advised(served: Any, robust: Robust) -> None:
    served.end()
    assert robust("stacks").stderr.endswith("; robust status says how it was left\n")
    assert robust("incident").stderr == "robust: there was no incident\n"


def test_a_timeline_needs_traces(served: Any, robust: Robust) -> None:
    served.end()
    result = robust("timeline")
    assert result.returncode == 1
    assert "no rank of attempt 0 left a trace here" in result.stderr
    assert robust("timeline", "--heatmap", "x.gif").returncode == 2
