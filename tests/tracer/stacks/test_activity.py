"""A rank that others wait for is told to work, to spin or to be idle by what its processes did while looked at."""

import pytest
from seen_ranks import GETS, REDUCES, SAVES, SITE, SPINS, STANDARD, TORCH, process, sight, stack

from robust_run.tracer.stacks.activity import LOOK_S, activity_of
from robust_run.tracer.types import RankSight

MB = 1_000_000
FORWARD = stack(
    f"{TORCH}/nn/functional.py:9 linear",
    "/app/model.py:20 forward",
    "/app/train.py:33 step",
    "/app/train.py:90 <module>",
)
LOSS = stack("/app/model.py:60 loss", "/app/train.py:34 step", "/app/train.py:90 <module>")
SPINS_IN_F = stack("/app/train.py:5 f", "/app/train.py:13 spin", "/app/train.py:90 <module>")
TOKENISES = [
    stack(f"{SITE}/tok/core.py:1 {leaf}", f"{SITE}/tok/run.py:2 b", f"{SITE}/tok/api.py:3 a", "/app/prep.py:4 prepare")
    for leaf in ("split", "merge", "merge")
]
POLLS = [
    stack(f"{STANDARD}/queue.py:{line} {leaf}", "/app/prep.py:4 poll")
    for line, leaf in ((1, "get_nowait"), (2, "get"), (3, "empty"))
]


def kind_and_reason(seen: RankSight) -> tuple[str, str]:
    told = activity_of(seen)
    return told.kind, told.reason


def test_asleep_is_idle():
    assert kind_and_reason(sight(process(GETS, GETS, GETS))) == ("idle", "asleep in data.py:88 batch in queue.py get")


def test_a_busy_loop_spins():
    seen = sight(process(SPINS, SPINS, SPINS, state="R", cpu=0.98))
    assert kind_and_reason(seen) == ("spinning", "uses 98 % of a core in train.py:12 spin")


def test_a_busy_loop_that_calls_a_function_spins():
    assert activity_of(sight(process(SPINS, SPINS_IN_F, SPINS, state="R", cpu=0.98))).kind == "spinning"


def test_a_loop_that_polls_spins():
    assert activity_of(sight(process(*POLLS, state="R", cpu=0.98))).kind == "spinning"


def test_a_computation_that_goes_through_functions_works():
    told = activity_of(sight(process(FORWARD, LOSS, FORWARD, state="R", cpu=3.2)))
    assert told.kind == "working"
    assert told.reason.startswith("uses 3.2 cores and moves in model.py:20 forward")


def test_changing_functions_deep_in_a_library_are_work():
    assert activity_of(sight(process(*TOKENISES, state="R", cpu=0.9))).kind == "working"


def test_functions_that_change_without_cpu_are_no_work():
    assert activity_of(sight(process(FORWARD, LOSS, FORWARD, cpu=0.02))).kind == "idle"


def test_flowing_bytes_are_work_and_told_with_their_rate():
    saves = sight(process(SAVES, SAVES, state="D", io_bytes=int(12 * MB * LOOK_S)))
    assert kind_and_reason(saves) == ("working", "writing 12 MB/s in torch.save")
    reads = sight(process(GETS, io_bytes=int(0.5 * MB * LOOK_S)))
    assert kind_and_reason(reads)[1] == "reading and writing 500 kB/s in data.py:88 batch in queue.py get"


def test_a_loggers_beat_is_no_work():
    assert activity_of(sight(process(GETS, io_bytes=4096))).kind == "idle"


def test_flowing_bytes_of_a_child_are_work():
    writer = process(SPINS, pid=11, is_rank=False, io_bytes=9 * MB)
    assert activity_of(sight(process(GETS), writer)).kind == "working"


@pytest.mark.parametrize(("used", "kind"), [({}, "idle"), ({"cpu": 0.01}, "working"), ({"io_bytes": 900}, "working")])
def test_a_program_that_it_started_may_take_as_long_as_it_shows_any_life(used: dict[str, float], kind: str):
    waits = stack(f"{STANDARD}/subprocess.py:1264 wait", "/app/train.py:70 upload")
    program = process(pid=11, is_rank=False, **used)
    assert activity_of(sight(process(waits), program)).kind == kind


def test_a_place_that_takes_long_is_work_even_if_nothing_shows():
    assert kind_and_reason(sight(process(SAVES))) == ("working", "in torch.save")


def test_a_rank_that_waits_for_peers_in_a_checkpoint_does_not_work_itself():
    waits = stack(*[f"{f.file}:{f.line} {f.function}" for f in (*REDUCES.frames[:1], *SAVES.frames)])
    assert activity_of(sight(process(waits))).kind == "idle"


@pytest.mark.parametrize("samples", [(), (FORWARD, LOSS)])
def test_a_child_that_computes_is_work(samples):
    child = process(*samples, pid=77, is_rank=False, command="cc1plus", cpu=0.8)
    assert kind_and_reason(sight(process(GETS), child)) == ("working", "its child 77 (cc1plus) uses 80 % of a core")


def test_a_child_in_a_busy_loop_is_no_work():
    child = process(SPINS, SPINS, SPINS, pid=77, is_rank=False, cpu=0.98)
    assert activity_of(sight(process(GETS, GETS), child)).kind == "idle"


def test_a_thread_that_computes_for_a_main_thread_that_sleeps_is_work():
    def sample(frame: str):
        return (stack(f"/app/prep.py:1 {frame}", "/app/prep.py:2 fill", main=False), GETS)

    seen = process(cpu=0.7)
    seen = type(seen)(
        pid=1, parent=0, is_rank=True, command="p", state="S", cpu=0.7, stacks=(sample("decode"), sample("crop"))
    )
    assert activity_of(sight(seen)).kind == "working"


def test_blocked_in_the_kernel_without_io_is_idle():
    seen = sight(process(SPINS, state="D", waits_in="nfs_wait_bit_killable"))
    assert kind_and_reason(seen) == ("idle", "blocked in the kernel (nfs_wait_bit_killable) in train.py:12 spin")


def test_where_a_data_loader_worker_is_stuck_is_told_of_the_rank_that_waits_for_it():
    loads = stack(
        f"{STANDARD}/queue.py:1 get", f"{TORCH}/utils/data/dataloader.py:2 __next__", "/app/train.py:40 <module>"
    )
    worker_loop = f"{TORCH}/utils/data/_utils/worker.py:320 _worker_loop"
    reads = stack("/app/data.py:5 __getitem__", worker_loop, "/app/train.py:40 <module>")
    waits = stack(f"{STANDARD}/multiprocessing/queues.py:1 get", worker_loop, "/app/train.py:40 <module>")
    workers = [process(waits, pid=11, is_rank=False), process(reads, pid=12, is_rank=False)]
    told = activity_of(sight(process(loads), *workers))
    assert told.kind == "idle"
    assert told.reason.endswith("; its DataLoader worker 12 is in data.py:5 __getitem__")
    assert "worker" not in activity_of(sight(process(GETS), *workers)).reason


def test_stopped_and_gone_are_idle():
    assert kind_and_reason(sight(process(SAVES, state="T"))) == ("idle", "stopped in torch.save")
    assert kind_and_reason(sight(process(state="X"))) == ("idle", "its process is gone")
    assert kind_and_reason(sight()) == ("idle", "its process is gone")


def test_cpu_without_any_stack_is_spinning():
    assert kind_and_reason(sight(process(state="R", cpu=1.0))) == ("spinning", "uses 100 % of a core")
