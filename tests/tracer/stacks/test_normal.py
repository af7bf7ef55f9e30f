"""Of a stack, people want to know where their program is; comparison wants what differs between ranks and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seen_ranks import (
    GATHERS,
    GETS,
    OURS,
    REDUCES,
    SAVES,
    SITE,
    SPINS,
    STANDARD,
    TORCH,
    process,
    sight,
    stack,
)

from robust_run.tracer.stacks.normal import (
    is_waiting,
    key,
    long_place,
    main_stacks,
    origin,
    place,
    short_path,
    user_frame,
)
from robust_run.tracer.types import Frame, ThreadStack


@pytest.mark.parametrize(
    ("file", "whose", "short"),
    [
        ("/app/train.py", "user", "/app/train.py"),
        ("train.py", "user", "train.py"),
        ("<string>", "user", "<string>"),
        (f"{STANDARD}/queue.py", "standard", "queue.py"),
        ("/usr/lib64/python3.14t/queue.py", "standard", "queue.py"),
        ("<frozen runpy>", "standard", "runpy.py"),
        ("<eval_with_key>.7", "standard", "<eval_with_key>.7"),
        (f"{TORCH}/nn/functional.py", "torch", "torch/nn/functional.py"),
        ("/usr/lib/python3/dist-packages/torch/hub.py", "torch", "torch/hub.py"),
        ("/src/pytorch/torch/distributed/rendezvous.py", "torch", "torch/distributed/rendezvous.py"),
        ("/home/me/torch/train.py", "user", "/home/me/torch/train.py"),
        (f"{SITE}/transformers/trainer.py", "library", "transformers/trainer.py"),
        (OURS, "ours", "robust_run/tracer/arm/recorder.py"),
    ],
)
def test_it_is_known_whose_code_runs(file: str, whose: str, short: str):
    assert origin(Frame("f", file, 1)) == whose
    assert short_path(file) == short


def test_the_users_frame_is_the_innermost_of_the_program():
    assert user_frame(GETS) == Frame("batch", "/app/data.py", 88)
    assert user_frame(REDUCES) == Frame("step", "/app/train.py", 52)


def test_a_program_that_is_a_library_has_its_frame_there():
    train = stack(
        f"{TORCH}/nn/functional.py:9 linear", f"{SITE}/transformers/trainer.py:7 step", f"{STANDARD}/runpy.py:1 run"
    )
    assert user_frame(train) == Frame("step", f"{SITE}/transformers/trainer.py", 7)


def test_there_may_be_no_frame_of_the_user():
    assert user_frame(stack(f"{STANDARD}/threading.py:331 wait")) is None
    assert user_frame(stack()) is None


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (GETS, "data.py:88 batch in queue.py get"),
        (REDUCES, "train.py:52 step in distributed_c10d.py all_reduce"),
        (SPINS, "train.py:12 spin"),
        (stack(f"{STANDARD}/threading.py:331 wait", "/app/a.py:3 f"), "a.py:3 f in threading.py wait"),
        (stack(f"{OURS}:9 wait", "/app/a.py:3 f"), "a.py:3 f"),
        (stack(f"{STANDARD}/threading.py:331 wait"), "threading.py:331 wait"),
        (stack("<frozen posixpath>:416 realpath", "/app/a.py:3 f"), "a.py:3 f in posixpath.py realpath"),
        (stack(), ""),
    ],
)
def test_a_place_is_told_for_people(seen: ThreadStack, words: str):
    assert place(seen) == words


def test_the_stacks_of_the_rank_are_those_of_its_own_main_thread():
    child = process(GETS, pid=11, is_rank=False)
    helper = stack("/app/log.py:3 beat", main=False)
    own = process(REDUCES, SPINS)
    with_helper = process(helper, SAVES)
    assert main_stacks(sight(child, own)) == (REDUCES, SPINS)
    assert main_stacks(sight(with_helper)) == (SAVES,)
    assert main_stacks(sight(child)) == ()


def test_keys_forget_wrappers_installations_and_from_level_to_level_more():
    assert key(REDUCES, "L1") == (
        "torch/distributed/distributed_c10d.py:2810 all_reduce",
        "/app/train.py:52 step",
        "/app/train.py:90 <module>",
    )
    assert key(REDUCES, "L2")[1] == "/app/train.py step"
    assert key(REDUCES, "L3") == ("torch/distributed/distributed_c10d.py all_reduce", "/app/train.py step")
    assert key(SPINS, "L3") == ("/app/train.py spin",)
    elsewhere = ThreadStack(
        is_main=True, frames=tuple(Frame(f.function, f.file.replace("/opt/py", "/usr"), f.line) for f in REDUCES.frames)
    )
    assert key(elsewhere, "L1") == key(REDUCES, "L1")


@pytest.mark.parametrize(
    "seen",
    [
        REDUCES,
        GATHERS,
        stack(f"{OURS}:80 wait", "/app/train.py:52 step"),
        stack(f"{TORCH}/distributed/rendezvous.py:190 _create_c10d_store", "/app/train.py:3 <module>"),
        stack(f"{TORCH}/distributed/pipelining/schedules.py:400 _wait_batch_p2p", "/app/train.py:3 <module>"),
        stack(
            f"{TORCH}/_ops.py:1 __call__", f"{TORCH}/distributed/_functional_collectives.py:2 wait_tensor", "/a.py:3 f"
        ),
    ],
)
def test_a_rank_inside_a_collective_waits(seen: ThreadStack):
    assert is_waiting(seen)
    assert long_place(seen) == ""


@pytest.mark.parametrize(
    "seen",
    [
        GETS,
        SPINS,
        SAVES,
        stack(),
        stack(f"{TORCH}/autograd/graph.py:800 _engine_run_backward", "/app/train.py:52 step"),
        stack(f"{TORCH}/distributed/distributed_c10d.py:2600 _object_to_tensor", "/app/train.py:52 step"),
        stack("/app/hook.py:1 f", f"{TORCH}/distributed/distributed_c10d.py:2810 all_reduce", "/app/train.py:52 step"),
    ],
)
def test_a_rank_elsewhere_does_not(seen: ThreadStack):
    assert not is_waiting(seen)


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (f"{TORCH}/serialization.py:850 save", "torch.save"),
        (f"{TORCH}/serialization.py:1400 load", "torch.load"),
        (f"{TORCH}/distributed/checkpoint/filesystem.py:3 write_data", "torch.distributed.checkpoint"),
        (f"{TORCH}/_dynamo/convert_frame.py:3 _compile", "torch.compile"),
        (f"{TORCH}/_inductor/compile_fx.py:3 compile_fx", "torch.compile"),
        (f"{SITE}/triton/compiler/compiler.py:3 compile", "torch.compile"),
        (f"{SITE}/safetensors/torch.py:3 save_file", "safetensors"),
        (f"{SITE}/huggingface_hub/file_download.py:3 http_get", "a download"),
        (f"{SITE}/fsspec/asyn.py:95 sync", "a transfer"),
        (f"{SITE}/wandb/sdk/wandb_run.py:9 finish", "a tracking service"),
        (f"{STANDARD}/http/client.py:640 _safe_read", "a download"),
        (f"{STANDARD}/http/client.py:473 read", "a download"),
        (f"{STANDARD}/http/client.py:470 read1", "a download"),
        (f"{STANDARD}/http/client.py:519 readinto", "a download"),
        (f"{STANDARD}/http/client.py:292 _read_status", "a download"),
        (f"{STANDARD}/http/client.py:331 begin", "a download"),
        (f"{STANDARD}/http/client.py:1430 getresponse", "a download"),
        (f"{STANDARD}/http/client.py:1000 send", ""),
        (f"{STANDARD}/http/server.py:1 read", ""),
        ("/app/http/client.py:3 read", ""),
        # A socket may be anybody's.
        (f"{STANDARD}/socket.py:718 readinto", ""),
        (f"{STANDARD}/ssl.py:1100 read", ""),
        (f"{STANDARD}/subprocess.py:1264 wait", "a program that it started"),
        (f"{STANDARD}/pdb.py:400 interaction", "a debugger"),
        (f"{SITE}/datasets/arrow_dataset.py:3 _map_single", "dataset preparation"),
        # What a compiled model runs through in each step, and what each sample is read through, takes no long time.
        (f"{TORCH}/_dynamo/eval_frame.py:3 compile_wrapper", ""),
        (f"{TORCH}/_inductor/runtime/triton_heuristics.py:3 run", ""),
        (f"{TORCH}/_inductor/output_code.py:3 __call__", ""),
        (f"{SITE}/datasets/arrow_dataset.py:3 __getitem__", ""),
        (f"{TORCH}/nn/functional.py:3 linear", ""),
    ],
)
def test_places_that_take_long_are_known_by_name(frame: str, name: str):
    assert long_place(stack("/app/inner.py:1 f", frame, "/app/train.py:3 <module>")) == name


FRAMES = st.builds(
    Frame, st.text(max_size=9), st.sampled_from([f"{TORCH}/x.py", "/a/b.py", "", "<", "/"]), st.integers()
)


@given(st.builds(ThreadStack, is_main=st.booleans(), frames=st.lists(FRAMES, max_size=6).map(tuple)))
def test_no_stack_is_too_strange(seen: ThreadStack):
    assert place(seen) == "" or seen.frames
    assert len(key(seen, "L3")) <= 2
    assert is_waiting(seen) in (True, False)
    assert isinstance(long_place(seen), str)
