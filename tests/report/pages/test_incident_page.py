"""The page of an incident says who, why and what was done, shows all ranks, and is harmless whatever a job is called."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from page_ground import ANYTHING, BEGIN_S, DONE, HOSTILE, RUNS, assert_harmless, attempt, incident, incident_page, scene
from seen_ranks import process, stack

from robust_run.report.effective import Standstill
from robust_run.report.pages.advice import BY_KIND, BY_RULE, ROLLED_BACK, START_AGAIN
from robust_run.report.pages.families import families
from robust_run.report.pages.incident.page import incident_html
from robust_run.report.pages.next_steps import steps_for
from robust_run.report.pages.rules import KIND_TITLES
from robust_run.report.pages.states import RankState, states_of
from robust_run.report.pages.types import Accepts, IncidentPage, NodePlace
from robust_run.report.pages.wait_graph import MOST_BOXES, graph_of, wait_graph
from robust_run.report.pages.words import clock_time
from robust_run.report.types import Action, Evidence
from robust_run.tracer.types import Group, Wait
from robust_run.tracer.verdict import ParallelGroup, parallel_groups, waits
from robust_run.tracer.wake.types import ThreadWait, WakeChain, WakeLink


def words(html: str) -> str:
    """Return what a reader sees, roughly."""
    without = re.sub(r"<(style|script|title)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", without.replace("<wbr>", "")))


def test_culprit_cause_and_action_come_first() -> None:
    said = words(incident_html(incident_page()))
    order = [
        "Rank 5 never joined all_reduce #60",
        "Culprit",
        "ank 5",
        "gpu-0001",
        "Cause",
        "Stuck",
        "Action",
        "Relaunched",
    ]
    places = [said.index(each) for each in order]
    assert places[-1] < said.index("What to do next") < said.index("What happened when") < said.index("All ranks")


def test_it_says_what_it_cost() -> None:
    said = words(incident_html(incident_page()))
    assert "12.0 s" in said
    assert "about 40" in said
    assert "576" in said, "8 ranks for 12 s, and for 60 s of steps made again"


def test_the_culprit_of_a_job_on_gpus_is_a_gpu() -> None:
    page = incident_page(incident=incident(verdict={"rule": "accelerator", "kind": "crash"}))
    assert "GPU 1" in words(incident_html(page)), "local rank 1 of gpu-0001"
    assert "local rank 1" in words(incident_html(incident_page()))


def test_all_ranks_have_their_state() -> None:
    page = incident_page()
    assert page.scene is not None
    states = {rank: each.state for rank, each in states_of(page, waits(page.scene)).items()}
    assert states == {rank: "culprit" if rank == 5 else "waiting" for rank in range(8)}


def test_a_node_at_fault_is_all_its_ranks() -> None:
    lost = incident(
        verdict={"kind": "node_lost", "ranks": (), "nodes": ("gpu-0000",), "rule": "node_lost", "group": ""}
    )
    states = states_of(incident_page(incident=lost, scene=None), ())
    assert [rank for rank, each in states.items() if each.state == "culprit"] == [0, 1, 2, 3]


def test_of_code_that_was_rolled_back_no_rank_is_at_fault() -> None:
    bad = incident(verdict={"kind": "nan", "ranks": (2,), "rule": "not_finite"}, action=Action(name="rollback"))
    page = incident_page(incident=bad, scene=None)
    assert states_of(page, ())[2].state == "shown"
    said = words(incident_html(page))
    assert "new version of the code" in said
    assert "Code rolled back" in said


def test_groups_of_a_kind_are_a_view_and_that_of_the_verdict_comes_first() -> None:
    found = families(parallel_groups(scene()), 8, "group dp_1")
    assert [(each.name, len(each.groups)) for each in found] == [("dp groups", 2), ("tp groups", 4)]


def test_groups_without_names_are_told_by_their_size() -> None:
    groups = [ParallelGroup(name=f"{i}", label=f"group {i}", ranks=(i, i + 4)) for i in range(4)]
    (found,) = families(groups, 8)
    assert (found.name, len(found.groups)) == ("groups of 2", 4)


def test_who_waits_for_whom_is_drawn_downwards_to_the_culprit() -> None:
    page = incident_page()
    assert page.scene is not None
    waiting = waits(page.scene)
    graph = graph_of(waiting, states_of(page, waiting))
    (last,) = graph.layers[-1]
    assert graph.boxes[last].ranks == (5,)
    level = {index: at for at, layer in enumerate(graph.layers) for index in layer}
    assert graph.edges
    assert all(level[one] < level[other] for one, other in graph.edges)


def test_the_chain_goes_on_below_the_culprit_to_what_it_waits_for_in_the_end() -> None:
    page = incident_page()
    assert page.scene is not None
    waiting = waits(page.scene)
    nothing = ThreadWait(doing="waits for its child 9 (curl)", wakers=())
    curl = ThreadWait(doing="waits for data from 10.0.0.3:443 <b>", wakers=())
    links = (WakeLink(pid=8, command="python", wait=nothing), WakeLink(pid=9, command="curl", wait=curl))
    chain = WakeChain(links=links, sentence="", ends=("10.0.0.3:443 <b>",), arrows="")
    graph = graph_of(waiting, states_of(page, waiting), [(5, chain)])
    names = [graph.boxes[index].name or graph.boxes[index].ranks for layer in graph.layers for index in layer]
    assert names[-3:] == [(5,), "pid 9 curl", "10.0.0.3:443 <b>"]
    drawn = wait_graph(graph)
    assert "pid 9 curl" in drawn and "10.0.0.3:443 &lt;b&gt;" in drawn and "<b>" not in drawn


def test_ranks_that_wait_in_a_circle_are_drawn_too() -> None:
    circle = [Wait(waiter=rank, awaited=((rank + 1) % 5,), what=f"recv {rank}", since_s=3.0) for rank in range(5)]
    page = incident_page(scene=None)
    graph = graph_of(circle, states_of(page, circle))
    assert sum(map(len, graph.layers)) == 5
    assert len(graph.edges) == 5


def test_of_a_large_graph_only_what_is_near_the_culprit_is_drawn() -> None:
    many = [Wait(waiter=rank, awaited=(5,), what=f"all_reduce #{rank}", since_s=3.0) for rank in range(8) if rank != 5]
    many += [Wait(waiter=rank, awaited=(rank - 1,), what=f"recv {rank}", since_s=3.0) for rank in range(8, 4000)]
    page = incident_page(scene=None, attempt=attempt(0, 0.0, nodes=1000, nproc=4))
    graph = graph_of(many, states_of(page, many))
    drawn = [graph.boxes[index] for layer in graph.layers for index in layer]
    assert len(drawn) == MOST_BOXES
    assert any(box.ranks == (5,) for box in drawn)
    assert graph.left_out > 3900


@pytest.mark.parametrize("rule", [*BY_RULE, "never_heard_of"])
@pytest.mark.parametrize("kind", KIND_TITLES)
def test_there_is_always_something_to_do_and_no_command_has_a_hole(kind: str, rule: str) -> None:
    for drawn in (RUNS, DONE):
        for action in ("relaunch", "rollback", "stop"):
            page = incident_page(
                incident=incident(verdict={"kind": kind, "rule": rule}, action=Action(name=action)), drawn=drawn
            )
            steps = steps_for(page)
            assert steps
            assert not any("{" in step.text + step.command for step in steps)


def commands(page: IncidentPage) -> list[str]:
    return [step.command for step in steps_for(page, most=99) if step.command]


@pytest.mark.parametrize("rule", [*BY_RULE, "never_heard_of"])
@pytest.mark.parametrize("kind", KIND_TITLES)
def test_no_command_is_advised_that_would_be_refused(kind: str, rule: str) -> None:
    """Where the controller would do nothing, only what reads the run directory or looks at this machine is left."""
    found = incident(verdict={"kind": kind, "rule": rule})
    for action in ("relaunch", "rollback", "stop", "report"):
        page = incident_page(incident=msgspec.structs.replace(found, action=Action(name=action)))
        told = [re.sub(r" /runs/llama|\d+", "", each).strip() for each in commands(page)]
        assert set(told) <= {"robust check", "robust incident", "robust events", "robust timeline"}


FIRST_WORDS = {
    "check": "robust check /runs/llama --node gpu-0001",
    "check_all": "robust check /runs/llama --all",
    "evict": "robust evict gpu-0001 /runs/llama",
    "readmit": "robust readmit gpu-0001 /runs/llama",
    "update": "robust update /runs/llama",
    "rollback": "robust code rollback /runs/llama",
    "code_log": "robust code log /runs/llama",
}


@pytest.mark.parametrize("accepted", FIRST_WORDS)
def test_each_command_is_advised_where_it_is_accepted_and_nowhere_else(accepted: str) -> None:
    only = msgspec.structs.replace(RUNS, accepts=Accepts(**{accepted: True}))
    all_but = msgspec.structs.replace(RUNS, accepts=msgspec.structs.replace(ANYTHING, **{accepted: False}))
    for kind in KIND_TITLES:
        for rule in (*BY_RULE, ""):
            found = incident(verdict={"kind": kind, "rule": rule})
            told = commands(incident_page(incident=found, drawn=only))
            asked = [each for each in told if each.startswith(tuple(FIRST_WORDS.values()))]
            assert all(each.startswith(FIRST_WORDS[accepted]) for each in asked)
            others = commands(incident_page(incident=found, drawn=all_but))
            assert not any(each.startswith(FIRST_WORDS[accepted]) for each in others)
    used = [step.needs for steps in (*BY_KIND.values(), *BY_RULE.values()) for step in steps]
    assert accepted in (*used, ROLLED_BACK.needs)


def test_a_job_that_was_stopped_is_never_told_to_resume() -> None:
    """`robust-run --resume` of a job that is over is refused."""
    for kind in KIND_TITLES:
        page = incident_page(incident=incident(verdict={"kind": kind, "rule": ""}, action=Action(name="stop")))
        steps = steps_for(page)
        assert not any("--resume" in step.text + step.command for step in steps)
        assert START_AGAIN in steps


#: Its ranks stood still for 30 s.
WENT_ON = attempt(
    0, 0.0, started_s=1.0, first_step_s=10.0, standstills=(Standstill(BEGIN_S + 100.0, BEGIN_S + 130.0, 1),)
)


def stopped_page(**more: Any) -> IncidentPage:
    """Rank 5 and a child of it are stopped, and that was only reported."""
    found = incident(verdict={"kind": "stopped", "rule": "state"}, action=Action(name="report"), resumed_s=None)
    seen = scene()
    rank, child = process(pid=4711, state="T"), process(pid=4712, state="T", is_rank=False)
    ranks = tuple(
        msgspec.structs.replace(each, processes=(rank, child) if each.rank == 5 else each.processes)
        for each in seen.ranks
    )
    settings = {"drawn": RUNS, "attempt": attempt(0, 0.0, started_s=1.0), "following": None, **more}
    return incident_page(incident=found, scene=msgspec.structs.replace(seen, ranks=ranks), **settings)


def test_stopped_processes_are_to_be_continued_on_their_node() -> None:
    first = steps_for(stopped_page())[0]
    assert first.command == "kill -CONT 4711 4712"
    assert "gpu-0001" in first.text


@pytest.mark.parametrize(
    "more",
    [
        {"drawn": DONE},
        {"attempt": attempt(0, 0.0, started_s=1.0, told_s=106.0)},
        {"following": attempt(1, 107.0)},
        {"scene": None},
        {"attempt": WENT_ON},
    ],
    ids=["the job is over", "the attempt was told to end", "the next attempt runs", "nobody looked", "it goes on"],
)
def test_what_has_ended_since_is_not_to_be_continued(more: dict[str, Any]) -> None:
    page = msgspec.structs.replace(stopped_page(), **more)
    assert not any("kill" in each for each in commands(page))


def test_a_hang_that_is_over_says_so_and_nobody_is_told_to_start_again() -> None:
    told = incident(action=Action(name="report", reason="--on-hang report"), resumed_s=None)
    page = incident_page(incident=told, attempt=WENT_ON, following=None, drawn=RUNS)
    assert "ranks went on 30.0 s after the onset" in incident_html(page)
    assert "until ranks went on" in incident_html(page)
    assert not any("robust restart" in each for each in commands(page))
    standing = attempt(0, 0.0, started_s=1.0, standstills=(Standstill(BEGIN_S + 100.0, None, 1),))
    page = msgspec.structs.replace(page, attempt=standing)
    assert "no rank has gone on since" in incident_html(page)
    assert any("robust restart" in each for each in commands(page))


def test_a_log_is_linked_where_it_is_there_and_nowhere_else() -> None:
    path = "attempt_0/5/stderr.log"
    told = incident(evidence=(Evidence(what="last words", rank=5, path=path, text="boom"),))
    assert f"<a href='../{path}'>" in incident_html(incident_page(incident=told, files=(path,)))
    assert f"../{path}" not in incident_html(incident_page(incident=told))
    odd = incident(evidence=(Evidence(what="last words", rank=5, path="../../etc/'x", text="boom"),))
    assert "href='../../.." not in incident_html(incident_page(incident=odd, files=("../../etc/'x",)))


def test_a_process_that_a_debugger_holds_is_not_to_be_continued() -> None:
    page = stopped_page()
    assert page.scene is not None
    held = tuple(
        msgspec.structs.replace(
            each, processes=tuple(msgspec.structs.replace(one, state="t") for one in each.processes)
        )
        for each in page.scene.ranks
    )
    page = msgspec.structs.replace(page, scene=msgspec.structs.replace(page.scene, ranks=held))
    assert not any("kill" in each for each in commands(page))


# --- of when what is shown is -------------------------------------------------------------------------------------------


def seen_at(since_onset_s: float | None) -> str:
    """Return what the page says with a scene of so many seconds after the onset."""
    at_s = 0.0 if since_onset_s is None else BEGIN_S + 100.0 + since_onset_s
    return words(incident_html(incident_page(scene=msgspec.structs.replace(scene(), at_unix_s=at_s))))


def test_it_says_when_ranks_were_looked_at() -> None:
    said = seen_at(4.6)
    assert said.count(f"As seen at {clock_time(BEGIN_S + 104.6)}, 0.40 s before the verdict.") == 3
    assert "8 ranks on 2 nodes. As seen at" in said


def test_what_ranks_did_before_the_incident_began_is_not_shown_as_if_it_were_of_it() -> None:
    said = seen_at(-470.0)
    assert "As seen at" not in said
    assert "Who waits for whom" not in said
    assert "What the ranks were doing" not in said
    assert "what the others did was not looked at" in said


def test_of_a_scene_whose_time_is_not_known_that_is_said() -> None:
    assert "It is not on record when that was seen." in seen_at(None)


def test_every_kind_has_advice_and_a_title() -> None:
    assert set(BY_KIND) == set(KIND_TITLES)


def test_names_in_commands_are_quoted_for_a_shell() -> None:
    page = incident_page(run="/runs/a b; rm -rf ~", drawn=RUNS)
    commands = [step.command for step in steps_for(page) if step.command]
    assert commands
    assert all("'/runs/a b; rm -rf ~'" in command for command in commands)


def hostile_html() -> str:
    world = scene()
    odd = process(stack(f"/app/{HOSTILE}.py:3 {HOSTILE.replace(' ', '')}"), pid=9, command=HOSTILE)
    group = Group(name="t2", desc=HOSTILE, ranks=(4, 5))
    sights = tuple(
        msgspec.structs.replace(
            each,
            node=HOSTILE,
            processes=(odd,) if each.rank == 5 else each.processes,
            trace=msgspec.structs.replace(each.trace, groups=(group, *each.trace.groups[1:])) if each.trace else None,
        )
        for each in world.ranks
    )
    page = incident_page(
        run_id=HOSTILE,
        run=f"/runs/{HOSTILE}",
        script=HOSTILE,
        drawn=RUNS,
        scene=msgspec.structs.replace(world, ranks=sights, silent_nodes=(HOSTILE,)),
        incident=incident(
            symptom=HOSTILE,
            verdict={"sentence": HOSTILE * 3 + "; " + HOSTILE, "nodes": (HOSTILE,), "group": HOSTILE, "rule": HOSTILE},
            action=Action(name="relaunch", reason=HOSTILE),
            evidence=(Evidence(what=HOSTILE, rank=5, path=HOSTILE, text=f"{HOSTILE}\n" * 100),),
        ),
    )
    assert page.attempt is not None
    place = NodePlace(node=HOSTILE, first_rank=0, nproc=8)
    return incident_html(msgspec.structs.replace(page, attempt=msgspec.structs.replace(page.attempt, places=(place,))))


def test_what_a_job_says_is_text_and_nothing_else() -> None:
    html = hostile_html()
    assert_harmless(html)
    assert "alert(1)" in html, "it is shown"


def test_the_data_for_the_script_cannot_end_its_element() -> None:
    (data,) = re.findall(r"<script type=\"application/json\" id=rank-data>(.*?)</script>", hostile_html(), re.DOTALL)
    assert "<" not in data
    assert json.loads(data)["nodes"][0][0] == HOSTILE


def test_a_page_allows_itself_nothing_but_its_own_script() -> None:
    html = incident_html(incident_page())
    (policy,) = re.findall(r'Content-Security-Policy content="([^"]+)"', html)
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", html), "nothing is fetched"


def test_ten_thousand_ranks_fit_in_a_tenth_of_what_is_allowed() -> None:
    page = incident_page(
        nodes=1250, nproc=8, scene=scene(10_000, 8), incident=incident(verdict={"nodes": ("gpu-0000",)})
    )
    html = incident_html(page)
    assert len(html.encode()) < 1_000_000
    assert 0 < html.count("class='cell") < 6_000
    assert "1 at fault" in words(html)


def test_one_rank_at_fault_does_not_redden_the_box_of_those_that_wait_in_the_same_call() -> None:
    together = [Wait(waiter=rank, awaited=(), what="all_reduce #2 of the world", since_s=5.0) for rank in range(4)]
    states = {rank: RankState("culprit" if rank == 3 else "waiting") for rank in range(4)}
    boxes = {box.ranks: box.state for box in graph_of(together, states).boxes}
    assert boxes == {(0, 1, 2): "waiting", (3,): "culprit"}


def test_the_title_is_parted_where_we_joined_it_not_within_a_message() -> None:
    message = f"rank 1 raised ValueError: {'wrong ' * 20}; see the manual"
    verdict = {"kind": "code", "rule": "user_exception", "ranks": (1,), "nodes": ("vm",)}
    quoted = incident(verdict={**verdict, "sentence": f"{message} on vm; it failed again"})
    html = incident_html(incident_page(incident=quoted, scene=None))
    assert "see the manual<span class=rest>It failed again</span></h1>" in html
    at = incident(verdict={**verdict, "sentence": f"{message} on vm; http://host/a.sqsh: the server says 404"})
    assert "<span class=rest>http://" in incident_html(incident_page(incident=at, scene=None)), (
        "an address stays as it is"
    )
    alone = incident(verdict={**verdict, "sentence": f"{message} on vm"})
    assert "see the manual</h1>" in incident_html(incident_page(incident=alone, scene=None))


def test_a_long_crash_has_a_short_title_and_says_nothing_twice() -> None:
    killed = "rank 0 was killed by SIGKILL (signal 9): the kernel killed it because memory ran out"
    why = "the kernel killed 1 of the job's processes: the limit of its cgroup is reached, or the node is full"
    verdict = {"kind": "crash", "rule": "out_of_memory", "ranks": (0,), "nodes": ("vm",)}
    sentence = f"{killed}: {why} on vm; shortly before, on vm: memory.oom_kill: {why}"
    html = incident_html(incident_page(incident=incident(verdict={**verdict, "sentence": sentence})))
    (title,) = re.findall(r"<h1>(.*?)</h1>", html, re.DOTALL)
    large, smaller = title.split("<span class=rest>")
    assert words(large).strip().lower() == killed.lower()
    assert words(smaller).count("the limit of its cgroup is reached") == 1
    alone = incident_page(incident=incident(verdict={**verdict, "sentence": f"{killed}: {why} on vm"}))
    assert words(incident_html(alone)).count("the limit of its cgroup is reached") == 1


def test_of_a_program_whose_steps_are_not_counted_it_says_when_its_workers_were_up_again() -> None:
    page = incident_page(
        incident=incident(resumed_s=None),
        attempt=attempt(0, 0.0, started_s=1.0, ended_s=106.0),
        following=attempt(1, 106.5, started_s=107.0),
    )
    said = words(incident_html(page))
    assert "workers up again 7.0 s after the onset" in said
    assert "no step was made after it" not in said
