"""Whether a thread waits for its GPU: `.item()`, `.cpu()`, `synchronize()`, `if loss > x`. Pure, but for the question what a line
says.

Such a call is C below a line of Python, so a stack only shows the line; CUDA spins in it, so it looks like a computation. A line
that names the call is taken at its word only of a thread that stands in it, sample after sample, in a process that uses a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from robust_run.tracer.stacks.asked_values import asked_in
from robust_run.tracer.stacks.normal import is_plumbing, short_path
from robust_run.tracer.types import Frame, ThreadStack

#: Functions of torch in which nothing else is done.
_FUNCTIONS = {
    ("torch/cuda/__init__.py", "synchronize"): "torch.cuda.synchronize()",
    ("torch/cuda/streams.py", "synchronize"): "synchronize()",
    ("torch/accelerator/__init__.py", "synchronize"): "torch.accelerator.synchronize()",
    (
        "torch/cuda/memory.py",
        "empty_cache",
    ): "torch.cuda.empty_cache()",  # memory is given back when the GPU is done with all
}
#: Calls by which a program asks for what only the GPU knows.
_CALLS = re.compile(r"\.(item|cpu|tolist|numpy|synchronize|nonzero)\(|\.to\(\s*['\"]cpu|\b(torch\.cuda\.synchronize)\(")
#: A copy to the GPU out of memory that is not page-locked waits for what the GPU does before it.
_TO_GPU = re.compile(r"\.(?:cuda\(|to\(\s*(?:self\.)?(?:device|rank|local_rank)\b|to\(\s*f?['\"]cuda)")
_NON_BLOCKING = "non_blocking"
#: Text that may only look like such a call.
_NO_CALL = re.compile(r"^\s*(?:#|def |class |async def |@|import |from )")


def device_wait(stacks: Sequence[ThreadStack], line_of: Callable[[Frame], str]) -> str:
    """Return the call in which a thread waits for its GPU, `.item()`; "": it does not, as far as its stacks show.

    `stacks`: samples of one thread, oldest first; one sample proves nothing, as every thread passes such lines. `line_of`: the
    text of a frame's line, "" where it is not known; asked for one frame at most.
    """
    leaves = [frames[0] for stack in stacks if (frames := [each for each in stack.frames if not is_plumbing(each)])]
    if len(leaves) < 2 or len(leaves) < len(stacks) or len(set(leaves)) > 1:
        return ""
    leaf = leaves[-1]
    known = _FUNCTIONS.get((short_path(leaf.file), leaf.function))
    return known or named_in(line_of(leaf))


def named_in(line: str) -> str:
    """Return the call in a line of Python that waits for the GPU; "" where there is none, or more than that may take long."""
    if _NO_CALL.match(line):
        return ""
    code = line.partition("#")[0]
    found = _CALLS.search(code)
    if found is not None:
        return f"{found[2]}()" if found[2] else f".{found[1]}()" if found[1] else '.to("cpu")'
    found = _TO_GPU.search(code)
    if found is not None and _NON_BLOCKING not in code:
        return ".cuda()" if found[0].startswith(".cuda") else ".to(device)"
    return asked_in(code)
