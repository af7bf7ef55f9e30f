"""Jobs of tests that start from a warm process: that they do where they should, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import hosts
import pytest
import warm_ground
from clusters import start_all, write
from jobs import run, script


@pytest.mark.parametrize("nproc", [1, 2])
def test_jobs_of_these_files_start_from_the_warm_process_unless_that_is_switched_off(
    tmp_path: Path, nproc: int
) -> None:
    code, job = run(tmp_path, "--nproc-per-node", str(nproc), script(tmp_path, "print('hello')"))
    assert (code, job.out.count("hello")) == (0, nproc)
    assert ("started from the warm process" in job.err) == warm_ground.WANTED


def test_each_of_them_is_there_and_other_files_start_from_nothing(request: pytest.FixtureRequest) -> None:
    tests = Path(warm_ground.__file__).parent
    assert [place for place in warm_ground.FILES if not (tests / place).is_file()] == []
    assert warm_ground.fits(request.node) == warm_ground.WANTED
    assert not any(name.startswith("launcher/warm/") for name in warm_ground.FILES), (
        "these start warm processes of their own"
    )


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "KINETO_LOG_LEVEL"])
def test_what_an_import_has_set_is_taken_away_before_a_test(request: pytest.FixtureRequest, name: str) -> None:
    """Else all jobs after a test that imported torch's compiler would start from nothing."""
    assert name not in os.environ or name in warm_ground.AT_START, "by a test before"
    if name in warm_ground.AT_START:
        pytest.skip(f"{name} is set here")
    os.environ[name] = "/nowhere"
    request.addfinalizer(lambda: os.environ.pop(name, None))
    assert name in warm_ground.set_by_imports()
    assert name not in warm_ground.usual_environment()
    with pytest.MonkeyPatch.context() as patch:
        warm_ground.take_away(patch)
        assert name not in os.environ


def test_what_a_developer_keeps_warm_is_not_used() -> None:
    folder = os.environ.get("ROBUST_WARM_FOLDER")
    assert (folder is not None) == warm_ground.WANTED
    assert folder is None or Path(folder).name.startswith("rw-")


def test_launchers_that_are_forked_on_hosts_have_what_they_would_have_started(tmp_path: Path) -> None:
    hosts.need_hosts()
    if not warm_ground.WANTED:
        pytest.skip("TEST_WARM=off")
    seen = "import sys; print(sorted({'torch', 'host_warmth', 'robust_run'} & set(sys.modules)), *sys.path)"
    with hosts.Cluster(2, tmp_path) as cluster:
        job = start_all(cluster, write(tmp_path, seen), tmp_path=tmp_path, options=["--nnodes", "2"])
        assert job.wait_ended() == {"node-0": 0, "node-1": 0}, job.said()
        for launcher in job.launchers:
            assert "started from the warm process" in launcher.err, job.said()
            assert "['torch'] " in launcher.process.out
            assert str(Path(__file__).parent) not in launcher.process.out.split()
        job.assert_nothing_left()
        assert [host.pids() for host in cluster] == [[], []]
