"""Pods of a Kubeflow job: they are told by PET_* where they meet, and share neither a home folder nor, at first, a secret."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from jobs import Job, running, script, unused_port

from robust_run.launcher.start.priority import NICENESS

SAYS_RANK = """
import os
niceness = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, os.getppid())]
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "niceness", *niceness, flush=True)
"""


@contextmanager
def pods(tmp_path: Path, *options: str, **env: str) -> Iterator[list[Job]]:
    """Two pods, each with a home folder of its own."""
    program, port = script(tmp_path, SAYS_RANK), unused_port()
    meet = {"PET_NNODES": "2", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(port), "PET_RDZV_ID": "job-1"}
    with ExitStack() as ends:
        jobs = []
        for rank in (0, 1):
            own = {"PET_NODE_RANK": str(rank), "HOME": str(tmp_path / f"home-{rank}"), "ROBUST_TOKEN": "", **env}
            (tmp_path / f"home-{rank}").mkdir()
            own["XDG_CONFIG_HOME"] = own["HOME"]
            job = ends.enter_context(running(tmp_path, *options, program, env={**meet, **own}))
            jobs.append(job)
        yield jobs


def test_without_a_secret_in_common_they_say_what_is_missing(tmp_path: Path) -> None:
    with pods(tmp_path, "--rdzv-conf", "join_timeout=20") as (first, second):
        assert second.finish() != 0
        assert "ROBUST_TOKEN or --token-file" in second.err
        assert "--insecure-rendezvous" in second.err
        first.signal(15)
        first.finish()


def test_they_meet_without_one_where_that_is_asked_for_and_each_says_what_it_means(tmp_path: Path) -> None:
    with pods(tmp_path, ROBUST_INSECURE_RENDEZVOUS="1") as jobs:
        assert [job.finish() for job in jobs] == [0, 0]
    said = "".join(job.out for job in jobs)
    assert sorted(re.findall(r"rank \d of 2", said)) == ["rank 0 of 2", "rank 1 of 2"]
    # Agents run before others where that is allowed; what they start does not.
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert {*re.findall(r"niceness (.*)", said)} <= {f"{own} {own}", f"{own} {NICENESS}"}
    for job in jobs:
        assert job.err.count("--insecure-rendezvous: whoever reaches port") == 1, job.err


def test_a_secret_of_the_deployment_is_enough(tmp_path: Path) -> None:
    with pods(tmp_path, ROBUST_TOKEN="a secret that kubectl has made") as jobs:
        assert [job.finish() for job in jobs] == [0, 0]
