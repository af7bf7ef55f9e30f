"""What matters of a stack: where the user's program is, in what it waits, and a key under which equal stacks are equal.

Stacks of ranks are compared across nodes, Python installations and tools, so paths lose what comes before `site-packages/`
or the standard library, and frames that every program has (bootstrap, wrappers of torch, our recorder) are dropped. Grouping
by text, and by it telling who is an outlier, is ByteRobust's method (section 5.1).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from robust_run.tracer.types import Frame, RankSight, ThreadStack

Origin = Literal["user", "library", "torch", "standard", "ours"]
Level = Literal["L1", "L2", "L3"]

_OURS = re.compile(r"/robust_run/(?:tracer|launcher)/")
_SITE = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD = re.compile(r"^.*/(?:lib|lib64)/python3(?:\.\d+)?t?/|^.*/python3\d+\.zip/")
#: A torch that was built in place lies in no site-packages.
_TORCH_TREE = re.compile(
    r"^.*/(?=torch/(?:_\w+|ao|autograd|cuda|distributed|fx|hub|jit|multiprocessing|nn|optim|serialization|utils)(?:/|\.py$))"
)
_PROGRAM_TEXT = ("<string>", "<stdin>", "<ipython", "<unknown>")

#: Frames that say nothing: how a program is started, and wrappers that every call goes through.
_PLUMBING_FILES = (
    "runpy.py",
    "sitecustomize.py",
    "importlib/",
    "torch/distributed/c10d_logger.py",
    "torch/utils/_contextlib.py",
    "torch/_tensor_docs.py",
)
_PLUMBING = frozenset(
    {
        ("threading.py", "_bootstrap"),
        ("threading.py", "_bootstrap_inner"),
        ("threading.py", "run"),
        ("torch/nn/modules/module.py", "_call_impl"),
        ("torch/nn/modules/module.py", "_wrapped_call_impl"),
        ("torch/nn/modules/module.py", "inner"),
        ("multiprocessing/process.py", "_bootstrap"),
        ("multiprocessing/process.py", "run"),
        ("multiprocessing/process.py", "start"),
        ("multiprocessing/popen_fork.py", "__init__"),
        ("multiprocessing/popen_fork.py", "_launch"),
        ("multiprocessing/context.py", "_Popen"),
        ("multiprocessing/spawn.py", "spawn_main"),
        ("multiprocessing/spawn.py", "_main"),
    }
)
#: Where the standard library sleeps: their caller tells more.
_SLEEPERS = frozenset(
    {
        "threading.py",
        "selectors.py",
        "multiprocessing/connection.py",
        "socket.py",
        "ssl.py",
        "subprocess.py",
        "asyncio/base_events.py",
    }
)
#: Where torch.distributed blocks until peers come. What these modules do besides takes no time.
_WAITING_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/rendezvous.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/elastic/utils/store.py",
)
#: These turn objects into tensors, which is the rank's own work.
_OWN_WORK = frozenset({"_object_to_tensor", "_tensor_to_object", "_get_object_coll_device"})
#: Functions of torch.distributed's other modules that only wait for communication.
_WAITING_FUNCTIONS = frozenset({"wait", "wait_tensor", "_wait_batch_p2p", "_wait_work", "_wait_for_computation_stream"})

#: Parts of paths, and functions where not all of the module takes long, of places that take long without being stuck.
#: Modules of torch.compile that also *run* compiled code (eval_frame, runtime/, output_code) are not among them.
#: It takes as long as that program shows any sign of life.
A_PROGRAM = "a program that it started"
#: Where a program's own service for it spends its life.
A_TRACKER = "a tracking service"
_LONG_PLACES: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = tuple(
    (name, re.compile(path), re.compile(function))
    for name, path, function in (
        ("torch.save", r"torch/serialization\.py$", r"_?(?:legacy_)?save$|persistent_id$"),
        ("torch.load", r"torch/serialization\.py$", r"_?(?:legacy_)?load|persistent_load$"),
        ("torch.distributed.checkpoint", r"torch/distributed/checkpoint/", r""),
        ("torch.compile", r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph|guards|backends/)", r""),
        ("torch.compile", r"torch/_inductor/(?!runtime/|output_code|utils|cudagraph)", r""),
        ("torch.compile", r"torch/_functorch/(?:aot_autograd|partitioners)|triton/(?:compiler|backends)/", r""),
        ("torch.export", r"torch/(?:export|_export)/", r""),
        ("torch.utils.cpp_extension", r"torch/utils/cpp_extension\.py$", r""),
        ("safetensors", r"(?:^|/)safetensors/", r""),
        ("a debugger", r"^(?:pdb|bdb)\.py$|(?:^|/)(?:debugpy|ipdb|IPython|pydevd)/", r""),
        (A_PROGRAM, r"^subprocess\.py$", r"_?wait$|_?communicate$|_try_wait$|run$|check_"),
        (A_TRACKER, r"(?:^|/)(?:wandb|mlflow|comet_ml|neptune|clearml)/", r""),
        ("a download", r"(?:^|/)huggingface_hub/|torch/hub\.py$|(?:^|/)(?:boto3|botocore|s3fs|gcsfs|gdown)/", r""),
        ("a transfer", r"(?:^|/)(?:fsspec|s3transfer|adlfs|hdfs_native|google/cloud/storage|azure/storage)/", r""),
        ("a download", r"(?:^|/)(?:requests/sessions|httpx/_client|urllib3/response)\.py$", r""),
        ("a download", r"^urllib/request\.py$", r"urlretrieve$|urlopen$"),
        # Sockets alone may be anything; a thread that reads a response of HTTP fetches something.
        (
            "a download",
            r"^http/client\.py$",
            r"(?:_safe_read|read|read1|readinto|_read_status|begin|getresponse)$",
        ),
        ("dataset preparation", r"(?:^|/)datasets/(?:builder|load|packaged_modules/)", r""),
        (
            "dataset preparation",
            r"(?:^|/)datasets/(?:arrow_dataset|dataset_dict)\.py$",
            r"_?map(?:_single)?$|filter$|save_to_disk$|sort$|train_test_split$|_?concatenate",
        ),
    )
)


@lru_cache(maxsize=4096)
def short_path(file: str) -> str:
    """Return the path without what differs between installations of Python and of packages."""
    if file.startswith("<frozen "):
        return file[8:].rstrip(">").replace(".", "/") + ".py"
    for pattern in (_SITE, _STANDARD, _TORCH_TREE):
        rest = pattern.sub("", file, count=1)
        if rest != file:
            return rest
    return file


def origin(frame: Frame) -> Origin:
    """Say whose code a frame runs. Packages that are installed are libraries, also if the user wrote them."""
    return _origin_of(frame.file)


@lru_cache(maxsize=4096)
def _origin_of(file: str) -> Origin:
    if _OURS.search(file):
        return "ours"
    if _SITE.match(file) or _TORCH_TREE.match(file):
        rest = short_path(file)
        return "torch" if rest.startswith(("torch/", "functorch/", "torchgen/")) else "library"
    if _STANDARD.match(file):
        return "standard"
    if file.startswith("<") and not file.startswith(_PROGRAM_TEXT):
        return "standard"
    return "user" if file != "???" else "standard"


def is_plumbing(frame: Frame) -> bool:
    """Whether the frame is of those that every program has."""
    short = short_path(frame.file)
    return (
        origin(frame) == "ours"
        or short.startswith(_PLUMBING_FILES)
        or (short, frame.function) in _PLUMBING
        or short.endswith("/sitecustomize.py")
    )


def telling_frames(stack: ThreadStack) -> tuple[Frame, ...]:
    """Return the frames without plumbing, innermost first."""
    return tuple(frame for frame in stack.frames if not is_plumbing(frame))


def user_frame(stack: ThreadStack) -> Frame | None:
    """Return the innermost frame of the user's program, else of an installed library that is not torch; None without one."""
    frames = telling_frames(stack)
    for wanted in ("user", "library"):
        for frame in frames:
            if origin(frame) == wanted:
                return frame
    return None


def place(stack: ThreadStack) -> str:
    """Return where a thread is, for people: `data.py:88 batch`, and within what if that tells more: ` in queue.py get`.

    Empty for a stack without frames.
    """
    frames = telling_frames(stack) or stack.frames
    if not frames:
        return ""
    user = user_frame(stack)
    if user is None:
        return _spot(frames[0])
    callees = frames[: frames.index(user)]
    if not callees:
        return _spot(user)
    # How the standard library sleeps tells nothing; what sleeps does.
    told = next((frame for frame in callees if short_path(frame.file) not in _SLEEPERS), callees[-1])
    return f"{_spot(user)} in {_base(told.file)} {told.function}"


def main_stacks(sight: RankSight) -> tuple[ThreadStack, ...]:
    """Return the main thread of the rank's own process in each sample that has it, oldest first."""
    rank_process = next((process for process in sight.processes if process.is_rank), None)
    if rank_process is None:
        return ()
    found = (main_thread(sample) for sample in rank_process.stacks)
    return tuple(stack for stack in found if stack is not None)


def main_thread(sample: tuple[ThreadStack, ...]) -> ThreadStack | None:
    """Return the main thread of one sample of one process, if it is there and has frames."""
    return next((stack for stack in sample if stack.is_main and stack.frames), None)


def key(stack: ThreadStack, level: Level) -> tuple[str, ...]:
    """Return what makes two stacks equal, innermost first: L1 with lines, L2 without, L3 leaf and user frame only."""
    frames = telling_frames(stack)
    if level == "L3":
        user = user_frame(stack)
        ends = frames[:1] + ((user,) if user is not None and user != frames[0] else ())
        return tuple(f"{short_path(frame.file)} {frame.function}" for frame in ends)
    if level == "L2":
        return tuple(f"{short_path(frame.file)} {frame.function}" for frame in frames)
    return tuple(f"{short_path(frame.file)}:{frame.line} {frame.function}" for frame in frames)


def is_waiting(stack: ThreadStack) -> bool:
    """Whether the thread is inside a call of torch.distributed that waits for peers.

    True where our recorder has wrapped the call, and where torch's Python code is innermost. A program that calls an
    unwrapped method of a C++ object is not recognised; nor is the backward pass, whose collectives Python does not see.
    """
    if stack.frames and origin(stack.frames[0]) == "ours":
        return True
    frames = telling_frames(stack)
    if not frames:
        return False
    leaf = frames[0]
    short = short_path(leaf.file)
    if short in ("torch/_ops.py", "torch/autograd/function.py") and len(frames) > 1:
        return short_path(frames[1].file) == "torch/distributed/_functional_collectives.py"
    if short in _WAITING_FILES:
        return leaf.function not in _OWN_WORK
    return short.startswith("torch/distributed/") and leaf.function in _WAITING_FUNCTIONS


def is_leaving(stack: ThreadStack) -> bool:
    """Whether the program has ended, by an exception or not, and its main thread waits for its other threads."""
    return any(frame.function == "_shutdown" and short_path(frame.file) == "threading.py" for frame in stack.frames)


def long_place(stack: ThreadStack) -> str:
    """Return the name of a place in the stack that takes long without being stuck, for people; "" if none or if it waits."""
    if is_waiting(stack):
        return ""
    for frame in stack.frames:
        short = short_path(frame.file)
        for name, path, function in _LONG_PLACES:
            if path.search(short) and function.match(frame.function):
                return name
    return ""


def _spot(frame: Frame) -> str:
    return f"{_base(frame.file)}:{frame.line} {frame.function}"


def _base(file: str) -> str:
    short = short_path(file)
    return short.rpartition("/")[2] or short
