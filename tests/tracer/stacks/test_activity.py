"""A rank that others wait for is told to work, to spin or to be idle by what its processes did while looked at."""

import msgspec
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

WAITS_FOR_PROGRAM = stack(f"{STANDARD}/subprocess.py:1264 wait", "/app/train.py:70 upload")
#: What a worker has under its own frames.
FORKED = (
    f"{STANDARD}/multiprocessing/process.py:108 run",
    f"{STANDARD}/multiprocessing/process.py:314 _bootstrap",
    f"{STANDARD}/multiprocessing/popen_fork.py:71 _launch",
    "/app/train.py:40 <module>",
)


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


def test_a_child_that_uses_cpu_in_one_function_makes_the_rank_spin():
    child = process(SPINS, SPINS, SPINS, pid=77, is_rank=False, command="writer", cpu=0.98)
    told = "its child 77 (writer) uses 98 % of a core in train.py:12 spin"
    assert kind_and_reason(sight(process(GETS, GETS), child)) == ("spinning", told)


@pytest.mark.parametrize(
    ("loop", "name"),
    [
        (f"{TORCH}/utils/data/_utils/worker.py:349 _worker_loop", "DataLoader worker"),
        (f"{STANDARD}/multiprocessing/pool.py:125 worker", "Pool worker"),
        (f"{STANDARD}/concurrent/futures/process.py:263 _process_worker", "Pool worker"),
    ],
)
def test_a_spinning_worker_is_named_by_what_it_is_for(loop: str, name: str):
    tokenises = stack("/app/tok.py:3 tok", loop, *FORKED)
    worker = process(tokenises, tokenises, tokenises, pid=4711, is_rank=False, state="R", cpu=0.98)
    told = f"its {name} 4711 uses 98 % of a core in tok.py:3 tok"
    assert kind_and_reason(sight(process(GETS), worker)) == ("spinning", told)


def test_where_a_worker_spins_is_told_without_what_its_parent_did():
    inverts = stack(f"{SITE}/numpy/linalg.py:3 svd", f"{STANDARD}/multiprocessing/pool.py:125 worker", *FORKED)
    worker = process(inverts, inverts, pid=11, is_rank=False, cpu=0.5)
    assert activity_of(sight(process(GETS), worker)).reason.endswith("uses 50 % of a core in linalg.py:3 svd")


def test_of_a_rank_and_a_child_that_spin_the_busier_is_told():
    def told(rank_cpu: float) -> str:
        child = process(SPINS, SPINS, pid=77, is_rank=False, cpu=0.5)
        return activity_of(sight(process(SPINS_IN_F, SPINS_IN_F, cpu=rank_cpu), child)).reason

    assert told(0.1).startswith("its child 77 ")
    assert told(0.9) == "uses 90 % of a core in train.py:5 f"


def test_a_child_that_hardly_uses_cpu_leaves_the_rank_idle():
    child = process(SPINS, SPINS, pid=77, is_rank=False, cpu=0.04)
    assert activity_of(sight(process(GETS), child)).kind == "idle"


def test_what_started_the_rank_is_none_of_its_children():
    wrapper = process(WAITS_FOR_PROGRAM, WAITS_FOR_PROGRAM, pid=1, is_rank=False, cpu=0.9)
    loader = process(GETS, pid=77, is_rank=False, cpu=0.01)
    assert activity_of(sight(wrapper, process(GETS), loader)).kind == "idle"


@pytest.mark.parametrize(
    ("spot", "name"),
    [
        (f"{STANDARD}/urllib/request.py:216 urlopen", "a download"),
        (f"{STANDARD}/http/client.py:473 read", "a download"),
        (f"{TORCH}/serialization.py:850 save", "torch.save"),
    ],
)
@pytest.mark.parametrize("below", [(f"{TORCH}/utils/data/_utils/worker.py:349 _worker_loop",), ()])
def test_a_child_in_a_place_that_takes_long_is_work(below: tuple[str, ...], spot: str, name: str):
    child = process(stack(spot, "/app/data.py:9 fetch", *below, *FORKED), pid=4711, is_rank=False, command="python")
    assert kind_and_reason(sight(process(GETS), child)) == ("working", f"its child 4711 (python) is in {name}")


def test_a_stopped_child_is_at_work_nowhere():
    fetches = stack(f"{STANDARD}/urllib/request.py:216 urlopen", "/app/data.py:9 fetch")
    assert activity_of(sight(process(GETS), process(fetches, pid=11, is_rank=False, state="T"))).kind == "idle"


@pytest.mark.parametrize(("used", "kind"), [({}, "idle"), ({"cpu": 0.01}, "working"), ({"io_bytes": 900}, "working")])
def test_a_program_that_a_child_started_may_take_as_long_as_it_shows_any_life(used: dict[str, float], kind: str):
    child = process(WAITS_FOR_PROGRAM, pid=11, is_rank=False, command="python", cpu=0.02)
    shell = msgspec.structs.replace(process(pid=12, is_rank=False), parent=11)
    program = msgspec.structs.replace(process(pid=13, is_rank=False, **used), parent=12)
    told = activity_of(sight(process(GETS), child, shell, program))
    assert told.kind == kind
    assert kind == "idle" or told.reason == "its child 11 (python) is in a program that it started"


def test_life_beside_a_child_is_not_that_of_the_program_it_started():
    child = process(WAITS_FOR_PROGRAM, pid=11, is_rank=False)
    beside = process(GETS, pid=12, is_rank=False, cpu=0.01)
    assert activity_of(sight(process(GETS), child, beside)).kind == "idle"


@pytest.mark.parametrize(
    "rests",
    [
        # What the parent did when it forked is not what the child does.
        stack(
            f"{STANDARD}/multiprocessing/queues.py:367 get",
            f"{STANDARD}/multiprocessing/pool.py:114 worker",
            f"{STANDARD}/multiprocessing/process.py:314 _bootstrap",
            f"{SITE}/datasets/arrow_dataset.py:3 map",
            "/app/train.py:40 <module>",
        ),
        # These wait for as long as the program runs.
        stack(
            f"{TORCH}/_inductor/compile_worker/subproc_pool.py:75 _recv_msg",
            f"{TORCH}/_inductor/compile_worker/__main__.py:60 main",
        ),
        stack(
            f"{STANDARD}/multiprocessing/connection.py:430 _recv",
            f"{TORCH}/distributed/checkpoint/_async_process_executor.py:200 _execute_save",
            f"{STANDARD}/multiprocessing/process.py:314 _bootstrap",
            "<string>:1 <module>",
        ),
        stack(f"{STANDARD}/selectors.py:468 select", f"{SITE}/wandb/sdk/service/server.py:9 serve"),
    ],
    ids=["pool", "compile", "checkpoint", "tracking"],
)
def test_a_child_that_waits_for_work_is_not_at_work(rests):
    assert activity_of(sight(process(GETS), process(rests, pid=11, is_rank=False))).kind == "idle"


def test_a_compile_worker_with_something_to_compile_works():
    compiles = stack(
        f"{SITE}/triton/compiler/compiler.py:3 compile",
        f"{TORCH}/_inductor/compile_worker/subproc_pool.py:470 do_job",
        f"{STANDARD}/concurrent/futures/process.py:263 _process_worker",
    )
    assert activity_of(sight(process(GETS), process(compiles, pid=11, is_rank=False))).kind == "working"


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
    for how, words in (
        ({"state": "T"}, "stopped"),
        ({"frozen_by": "/sys/fs/cgroup/a/cgroup.freeze"}, "frozen by a cgroup"),
    ):
        held = process(waits, pid=11, is_rank=False, **how)
        assert f"; its DataLoader worker 11 is {words} in " in activity_of(sight(process(loads), held)).reason


@pytest.mark.parametrize("used", [{"state": "R"}, {"starved": 0.8}])
def test_waiting_for_a_cpu_is_no_sleep(used: dict[str, object]):
    told = activity_of(sight(process(GETS, GETS, **used)))
    assert told.kind == "working"
    assert told.reason.startswith("waits for a CPU, ")
    child = process(GETS, pid=11, is_rank=False, command="python loader.py", **used)
    of_child = activity_of(sight(process(GETS, GETS), child))
    assert (of_child.kind, of_child.reason.split(",")[0]) == (
        "working",
        "its child 11 (python loader.py) waits for a CPU",
    )


def test_one_that_looks_at_something_now_and_then_hardly_waits_for_a_cpu():
    assert activity_of(sight(process(GETS, GETS, starved=0.1))).kind == "idle"


def test_stopped_and_gone_are_idle():
    assert kind_and_reason(sight(process(SAVES, state="T"))) == ("idle", "stopped in torch.save")
    assert kind_and_reason(sight(process(state="X"))) == ("idle", "its process is gone")
    assert kind_and_reason(sight()) == ("idle", "its process is gone")


def test_cpu_without_any_stack_is_spinning():
    assert kind_and_reason(sight(process(state="R", cpu=1.0))) == ("spinning", "uses 100 % of a core")


def test_a_rank_in_a_debugger_has_a_person_beside_it():
    assert activity_of(sight(process(GETS, state="t"))).kind == "working"
    assert activity_of(sight(process(GETS, state="T"))).kind == "idle"
