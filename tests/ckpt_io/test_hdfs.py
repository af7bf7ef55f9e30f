"""A checkpoint on a real HDFS: striped, saved over, read while a DataNode dies, written while one dies."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from jobs import run, script
from saved_checkpoints import Faults, Operation, contents, held_by, save
from servers.hdfs import MiniHdfs, running_hdfs

from robust_run.ckpt_io.address import parse
from robust_run.ckpt_io.catalog import latest, list_checkpoints, prune
from robust_run.ckpt_io.copying.restore import restore
from robust_run.ckpt_io.copying.sources import open_source
from robust_run.store.errors import NotFound
from robust_run.store.opening import open_store
from robust_run.store.types import StoreOptions

#: A busy machine is no dead NameNode.
patient = partial(open_store, options=StoreOptions(stall_s=60))
# A pipeline that lost a DataNode hangs for as long as it may.
hurried = partial(open_store, options=StoreOptions(stall_s=20))
#: The first test downloads Hadoop and starts four Java processes.
pytestmark = pytest.mark.timeout(1200)
HELD, OTHER = contents(1), contents(2)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MiniHdfs]:
    pytest.importorskip("hdfs_native")
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def place(hdfs: MiniHdfs) -> str:
    return f"{hdfs.url}/{uuid.uuid4().hex}"


@pytest.mark.parametrize("streamed", [False, True])
def test_a_striped_checkpoint_is_saved_over_and_pruned(place: str, streamed: bool) -> None:
    root, also = f"{place}/one", [f"{place}/two", f"{place}/three"]
    for held, step in ((OTHER, 1), (HELD, 1), (OTHER, 2)):
        save(f"{root}/step-{step}", held, also, stores=patient, streamed=streamed, step=step)
    assert held_by(f"{root}/step-1", stores=patient) == HELD
    assert all(found.leftovers == () for found in list_checkpoints(root, also, stores=patient))
    prune(root, also=also, keep=1, stores=patient)
    newest = latest(root, stores=patient)
    assert newest is not None and newest.name == "step-2"
    assert [found.name for found in list_checkpoints(root, also, stores=patient)] == ["step-2"]
    assert held_by(f"{root}/step-2", stores=patient) == OTHER


def test_a_folder_of_others_is_restored_with_everything_below_it(place: str, tmp_path: Path) -> None:
    files = {
        "latest_checkpointed_iteration.txt": b"2",
        "iter_2/mp_rank_00/x.pt": bytes(9 << 20),
        "iter_2/.hidden/a b": b"",
    }
    store = patient(f"{place}/run")
    for path, data in files.items():
        store.write_all(path, data)
    assert [(each.path, each.kind) for each in store.walk()] == [
        ("iter_2", "folder"),
        ("iter_2/.hidden", "folder"),
        ("iter_2/.hidden/a b", "file"),
        ("iter_2/mp_rank_00", "folder"),
        ("iter_2/mp_rank_00/x.pt", "file"),
        ("latest_checkpointed_iteration.txt", "file"),
    ]
    with pytest.raises(NotFound):
        store.walk("iter_2/mp_rank_00/x.pt")
    store.close()
    for verify_only in (False, True):
        opened = open_source(f"{place}/run", stores=patient)
        done = restore(opened, parse(str(tmp_path / "dst")), verify_only=verify_only)
        opened.close()
        assert (done.files, done.wrong, done.extra) == (3, (), ())
    assert {path: (tmp_path / "dst" / path).read_bytes() for path in files} == files


@pytest.mark.parametrize(("name", "node"), [("half written", 1), ("read_into", 2)])
def test_a_datanode_that_dies_midway_loses_nothing(hdfs: MiniHdfs, place: str, name: str, node: int) -> None:
    killed: list[Operation] = []

    def fault(operation: Operation) -> None:
        if operation.name == name and operation.path.endswith(".part") and not killed:
            killed.append(operation)
            hdfs.kill_datanode(node)

    stores, also = Faults(fault, hurried), [f"{place}/two"]
    try:
        save(f"{place}/one/ck", HELD, also, stores=stores if name == "half written" else hurried)
        assert held_by(f"{place}/one/ck", also, stores=stores) == HELD
        assert killed
    finally:
        if killed:
            hdfs.restart_datanode(node)


JOB = """
import os, sys
sys.path.insert(0, sys.argv[2])
from saved_checkpoints import contents, held_by, save

url, attempt = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
print("told", attempt, os.environ.get("ROBUST_RESUME"), bool(os.environ.get("ROBUST_CKPT_FETCHED")), flush=True)
if attempt == "0":
    save(f"{url}/step-1", contents(1), step=1)
    save(f"{url}/step-2", contents(2), step=2)
    sys.exit(3)
print("right", held_by(os.environ["ROBUST_RESUME"]) == contents(2), flush=True)
"""


def test_a_job_saves_there_and_goes_on_from_there(place: str, tmp_path: Path) -> None:
    url = f"{place}/run"
    path, tests = script(tmp_path, JOB), str(Path(__file__).parent.parent)
    code, job = run(tmp_path, "--max-restarts", "1", "--ckpt-dir", url, path, url, tests)
    assert code == 0, job.err
    told = sorted(line[line.index("told") :] for line in job.out.splitlines() if "told" in line)
    assert told == ["told 0 None False", f"told 1 {url}/step-2 True"]
    assert "right True" in job.out
    (chosen,) = [each for each in job.events("resume_chosen") if each["attempt"] == 1]
    assert (chosen["step"], chosen["address"]) == (2, f"{url}/step-2")
    assert [each["saved"]["step"] for each in job.events("attempt_ended") if each.get("saved")] == [2]
