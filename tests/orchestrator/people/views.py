"""A job of two roles as people are shown it, for tests."""

from __future__ import annotations

from typing import Any

from robust_run.orchestrator.people.views.history import History, Loss, MemberCourse, Moment, RolesNow, Stretch
from robust_run.orchestrator.rules.waits import lines_of
from robust_run.roles.queue_words import Counts
from robust_run.roles.view_words import MemberView, RolesView, RoleView, WaitChain, WaitStep

WAITS = WaitStep(worker="trainer/0:0", does="waits", for_s=45.0, queue="samples", what="an item")


def works(worker: str) -> WaitStep:
    return WaitStep(worker=worker, does="works", for_s=44.0, queue="prompts", items=2)


def member(name: str, state: str = "running", **more: Any) -> MemberView:
    run = f"members/{name.replace('/', '-')}.1"
    known = {"ready": state == "running", "generation": 1, "starts": 1, "run": run, "nodes": ("node-a",)}
    return MemberView(name=name, state=state, **{**known, **more})


def view(*chains: WaitChain, rollouts: tuple[MemberView, ...] = (), **more: Any) -> RolesView:
    """A trainer and its rollouts; one of them was lost and is back."""
    rollouts = rollouts or (member("rollout/0", idle=0.5), member("rollout/1", generation=2, restarts=1, idle=0.0))
    trainer = RoleView(
        name="trainer",
        restart="together",
        wanted=1,
        fewest=1,
        most=1,
        members=(member("trainer/0", idle=0.9),),
        idle=0.9,
    )
    rollout = RoleView(
        name="rollout", restart="alone", wanted=len(rollouts), fewest=1, most=4, members=rollouts, idle=0.25
    )
    queues = {"prompts": Counts(waiting=100, leased=2, put=300, done=198), "samples": Counts(put=5, done=5, stale=1)}
    known: dict[str, Any] = {
        "name": "dapo",
        "phase": "going",
        "is_led": True,
        "node": "node-a",
        "queues": queues,
        "queue_items": 1024,
        "queue_bytes": 1 << 28,
        "chains": chains,
        "waits": tuple(lines_of(chains)),
        "roles": (trainer, rollout),
    }
    return RolesView(**{**known, **more})


def history(**more: Any) -> History:
    """rollout/1 was down from second 40 to 42."""
    runs = Stretch(kind="runs", begin_s=1002.0, end_s=1100.0, generation=1)
    members = (
        MemberCourse(name="trainer/0", role="trainer", stretches=(runs,), runs=("trainer-0.1",)),
        MemberCourse(name="rollout/0", role="rollout", stretches=(runs,), runs=("rollout-0.1",)),
        MemberCourse(
            name="rollout/1",
            role="rollout",
            stretches=(
                Stretch(kind="starts", begin_s=1000.0, end_s=1002.0),
                Stretch(kind="runs", begin_s=1002.0, end_s=1040.0, generation=1),
                Stretch(kind="down", begin_s=1040.0, end_s=1042.0, generation=1),
                Stretch(kind="runs", begin_s=1042.0, end_s=1100.0, generation=2),
            ),
            runs=("rollout-1.1",),
        ),
    )
    lost = Loss(
        at_s=1040.0, member="rollout/1", run="rollout-1.1", sentence="rank 0 was killed by SIGKILL", back_s=1042.5
    )
    moments = (
        Moment(at_s=1000.0, text="the job begins"),
        Moment(at_s=1040.5, text="rollout/1 failed: rank 0 was killed by SIGKILL"),
        Moment(at_s=1042.0, text="rollout/1 runs (generation 2)"),
    )
    known: dict[str, Any] = {"members": members, "losses": (lost,), "moments": moments}
    return History(begun_s=1000.0, known_s=1100.0, **{**known, **more})


def now(**more: Any) -> RolesNow:
    return RolesNow(**{"view": view(), "history": history(), "now_s": 1100.0, **more})
