"""Whether a job lives that does not answer, and what may be advised then: never what would start it a second time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robust_run.health.sensors.job import mountinfo
from robust_run.launcher.operator.reading.life_signs import is_local
from robust_run.launcher.operator.views.life import LifeSigns, life_of

RESUME = "robust-run --resume '/runs/a b'"


def signs(**more: Any) -> LifeSigns:
    """Signs of a job of this machine on which nothing controls it any more."""
    settings = {"host": "here", "is_this_host": True, "silence": "its controller on here is gone", "is_refused": True}
    return LifeSigns(run_directory="/runs/a b", **{**settings, **more})


def test_a_job_that_nothing_controls_any_more_can_be_continued_where_it_was_controlled() -> None:
    here = life_of(signs())
    assert (here.life, here.resumable, here.todo) == ("gone", True, RESUME)
    elsewhere = life_of(signs(host="gpu-1", is_this_host=False))
    assert (elsewhere.life, elsewhere.resumable, elsewhere.todo) == ("gone", False, f"{RESUME}, typed on gpu-1")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"is_refused": False, "silence": "the controller did not answer within 10 s"}, "did not answer within 10 s"),
        ({"is_claimed": True}, "a process holds its journal, so it lives"),
        ({"process": 4711}, "process 4711 exists, which was its controller"),
        ({"led_by": "gpu-2 controls it now at 10.0.0.2:29400 (term 3)"}, "gpu-2 controls it now"),
        ({"led_by": "who leads it cannot be known here: no etcd"}, "cannot be known here"),
        ({"is_refused": False, "is_this_host": False, "host": "gpu-1", "silence": "it runs or ran on gpu-1"}, "gpu-1"),
    ],
    ids=["slow or stopped", "its socket was removed", "serves nothing", "moved", "no coordinator", "another machine"],
)
def test_one_that_may_live_is_never_to_be_continued(more: dict[str, Any], said: str) -> None:
    found = life_of(signs(**more))
    assert (found.life, found.resumable) == ("unknown", False)
    assert said in found.note
    assert "--resume" not in found.todo
    assert "robust status" in found.todo


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("/data/runs/a", True), ("/home/ann/runs/a", False), ("/shared/a", False), ("/tmp/a", False), ("/gfs/a", False)],
)
def test_only_a_disk_of_this_machine_is_known_to_be_nobody_else_s(folder: str, expected: bool) -> None:
    mounts = mountinfo.parse(
        "1 0 0:30 / / rw - overlay overlay rw\n"
        "2 1 8:1 / /data rw - ext4 /dev/sda1 rw\n"
        "3 1 0:40 / /home rw - nfs4 filer:/home rw\n"
        "4 1 0:41 / /shared rw - fuse.sshfs x rw\n"
        "5 1 0:42 / /tmp rw - tmpfs tmpfs rw\n"
        "6 1 8:16 / /gfs rw - gfs2 /dev/sdb rw\n"
    )
    assert is_local(folder, mounts) == expected


def test_one_that_is_over_or_answers_needs_nothing() -> None:
    for is_over, answers, life in ((True, False, "over"), (True, True, "over"), (False, True, "running")):
        found = life_of(signs(is_over=is_over, answers=answers))
        assert (found.life, found.note, found.todo, found.resumable) == (life, "", "", False)


@given(
    st.builds(
        LifeSigns,
        run_directory=st.just("/runs/a b"),
        is_over=st.booleans(),
        answers=st.booleans(),
        host=st.sampled_from(["", "here", "gpu-1"]),
        is_this_host=st.booleans(),
        silence=st.just("silence"),
        is_refused=st.booleans(),
        is_claimed=st.booleans(),
        process=st.sampled_from([0, 7]),
        led_by=st.sampled_from(["", "gpu-2 controls it"]),
    )
)
def test_whatever_is_seen_resuming_is_advised_only_where_nothing_speaks_for_life(seen: LifeSigns) -> None:
    found = life_of(seen)
    may_live = seen.answers or seen.is_claimed or bool(seen.process) or bool(seen.led_by) or not seen.is_refused
    if "--resume" in found.todo or found.resumable:
        assert found.life == "gone"
        assert not (seen.is_over or may_live)
    assert found.resumable <= seen.is_this_host
    assert (found.life in ("unknown", "gone")) == bool(found.todo)
