"""What makes the next start shorter: each rule speaks where it should, and nowhere else."""

from __future__ import annotations

from made_starts import UNIX_S, attempt_of, node_start, slow_node, startup_of

from robust_run.report.startup.advise import advise
from robust_run.report.startup.types import AttemptStartup, SchedulerQueue


def advised(*attempts: AttemptStartup, number: int | None = None) -> list[str]:
    return [each.what for each in advise(startup_of(*attempts), number)]


def one(**more: object) -> AttemptStartup:
    return attempt_of(node_start(0, many=False, **more))  # type: ignore[arg-type]


def test_a_quick_start_needs_nothing() -> None:
    assert advised(one(imports_s=0.2, load_s=0.1)) == []


def test_long_imports_on_one_node_want_a_warm_process() -> None:
    assert advised(one(imports_s=1.8, load_s=0.1)) == ["robust warm start"]


def test_what_a_restart_of_the_same_job_took_is_what_a_warm_process_leaves() -> None:
    restart = attempt_of(
        node_start(0, imports_s=1.5, load_s=0.1, attempt=1, how="promote", began_s=100.0), is_first=False
    )
    first = one(imports_s=4.0, load_s=0.1)
    (found, *_) = advise(startup_of(first, restart), 0)
    assert found.what == "robust warm start"
    assert 2.4 < found.saves_s < 2.6


def test_imports_from_a_slow_disk_want_to_be_read_ahead_best_thing_first() -> None:
    found = advise(startup_of(one(imports_s=30.0, load_s=0.1, first_step_s=140.0)))
    assert [each.what for each in found] == ["--prefetch-env", "robust warm start"]
    assert found[0].saves_s > found[1].saves_s > 0


def test_imports_that_read_no_disk_were_slow_for_another_reason() -> None:
    slow = {"imports_s": 30.0, "load_s": 0.1, "first_step_s": 140.0}
    assert advised(one(**slow, read_bytes=1 << 20)) == ["robust warm start"]
    assert "--prefetch-env" in advised(one(**slow, read_bytes=1 << 30))


def test_what_is_in_use_is_not_advised() -> None:
    uses = ("warm-process", "prefetch-env")
    assert advised(one(imports_s=30.0, load_s=0.1, first_step_s=140.0, uses=uses)) == []


def test_a_checkpoint_read_by_torch_wants_to_be_striped() -> None:
    (found,) = advise(startup_of(one(imports_s=0.1, load_s=5.0)))
    assert found.what.startswith("robust ckpt convert")
    assert "torch.load took 5.0 s" in found.why
    assert 1.0 < found.saves_s < 5.0


def test_a_batch_script_that_installs_wants_a_set_up() -> None:
    queue = SchedulerQueue(eligible_unix_s=UNIX_S, started_unix_s=UNIX_S + 20.0, is_batch=True)
    found = attempt_of(node_start(0, imports_s=0.1, load_s=0.1, many=False), queue=queue)
    assert advised(found)[0].startswith("--setup")


def test_an_image_in_which_the_set_up_was_built_was_not_slow_to_mount() -> None:
    start = {"imports_s": 0.1, "load_s": 0.1, "image_s": 40.0, "first_step_s": 150.0}
    assert advised(one(**start, uses=("image",)))[0].startswith("robust image build")
    (found,) = advise(startup_of(one(**start, uses=("image", "setup", "setup-built"))))
    assert found.what == "nothing: the next start restores the set-up that this one built"
    assert 39.0 < found.saves_s < 40.0


def test_a_slow_node_is_to_be_looked_at() -> None:
    assert advised(slow_node())[0] == "look at node-7; while the job runs, robust evict node-7 leaves it out"


def test_nodes_started_one_by_one_want_to_be_started_together() -> None:
    found = attempt_of(
        node_start(0, imports_s=0.1, load_s=0.1, launched_s=100.0, began_s=105.2),
        node_start(1, imports_s=0.1, load_s=0.2, launched_s=105.0, began_s=105.2),
    )
    assert advised(found) == ["start robust-run on all nodes at once (srun, mpirun, pdsh)"]


def test_restarts_that_import_want_more_preloaded() -> None:
    slow = attempt_of(node_start(0, attempt=1, how="promote", imports_s=2.0, load_s=0.1), is_first=False)
    assert advised(slow) == ["--preload auto"]
    cold = attempt_of(node_start(0, attempt=1, imports_s=2.0, load_s=0.1, uses=("no-warm",)), is_first=False)
    assert advised(cold) == ["leave out --no-warm"]
    lacking = attempt_of(
        node_start(0, attempt=1, how="promote", imports_s=2.0, load_s=0.1, uses=("preload-auto",)), is_first=False
    )
    (named,) = advised(lacking)
    assert named.startswith("--preload torch,torch.distributed,MODULE")
