"""A thread that waits for its GPU is told from one that computes: by its line, if it stands there, in a process with a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from seen_ranks import SPINS, TORCH, process, sight, stack

from robust_run.tracer.sight.source_lines import line_of, uses_gpu
from robust_run.tracer.stacks.activity import activity_of
from robust_run.tracer.stacks.device_wait import device_wait, named_in
from robust_run.tracer.types import Frame

STEP = stack("/app/train.py:52 step", "/app/train.py:90 <module>")
ELSEWHERE = stack("/app/train.py:53 step", "/app/train.py:90 <module>")
STREAM = stack(f"{TORCH}/cuda/streams.py:108 synchronize", "/app/train.py:60 step")
EMPTIES = stack(f"{TORCH}/cuda/memory.py:220 empty_cache", "/app/train.py:60 step")
SYNCHRONIZES = stack(f"{TORCH}/cuda/__init__.py:1083 synchronize", "/app/train.py:60 step")


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("    total += loss.item()", ".item()"),
        ("losses.append(loss.detach().cpu())", ".cpu()"),
        ("    torch.cuda.synchronize()", "torch.cuda.synchronize()"),
        ("    event.synchronize()  # wait", ".synchronize()"),
        ("grid = out.to('cpu')", '.to("cpu")'),
        ("    counts = hits.tolist()", ".tolist()"),
        ("    stream.synchronize()", ".synchronize()"),
        ("    torch.cuda.synchronize(device)", "torch.cuda.synchronize()"),
        ("x, y = x.cuda(), y.cuda()", ".cuda()"),
        ("x = x.to(self.device)", ".to(device)"),
        ('x = x.to(f"cuda:{rank}")', ".to(device)"),
        ("x = x.to(device, non_blocking=True)", ""),
        ("x = x.to(torch.bfloat16)", ""),
        ("    if loss > limit:", "bool()"),
        ("elif not scaler.found_inf and step >= 3:  # overflow", "bool()"),
        ("    if torch.isnan(loss).any():", "bool()"),
        ("    assert torch.isfinite(total - 2 * norm[0])", "bool()"),
        ("if loss == 0: continue", "bool()"),
        ("    value = float(loss)", "float()"),
        ("    total += float(self.losses[-1])", "float()"),
        ('if metrics["loss"] > 3:', "bool()"),
        ("return int(steps.sum())", ""),
        ("for name, value in config.items():", ""),
        ("# loss.item() would wait", ""),
        ("x = fast(y)  # not y.item()", ""),
        ("def item(self):", ""),
        ("model.train()", ""),
        ("if key in table:", ""),
        ("if state == before:", ""),
        ("if loss is None:", ""),
        ("if ready is not None and other is None:", ""),
        ("if check(loss) > 3:", ""),
        ("if any(x > 3 for x in losses):", ""),
        ("if 10**n > x:", ""),
        ("if loss > x: save(model)", ""),
        ("while not done:", ""),
        ("while loss > x:", ""),
        ("if True:", ""),
        ("if (loss > x and", ""),
        ("print(float(loss))", ""),
        ("n = int('9' * size)", ""),
        ("total = loss + other", ""),
        ("", ""),
    ],
)
def test_a_line_is_taken_at_its_word(line: str, call: str) -> None:
    assert named_in(line) == call


def test_who_stands_in_such_a_line_waits_for_the_gpu_and_who_passes_it_does_not() -> None:
    def says(_: Frame) -> str:
        return "loss.item()"

    assert device_wait([STEP, STEP, STEP], says) == ".item()"
    assert device_wait([STEP, ELSEWHERE], says) == "", "it moves"
    assert device_wait([STEP], says) == "", "one sample proves nothing"
    assert device_wait([], says) == ""
    assert device_wait([SYNCHRONIZES] * 2, lambda _: "") == "torch.cuda.synchronize()"
    assert device_wait([STREAM] * 2, lambda _: "") == "synchronize()", "of a stream, or of an event"
    assert device_wait([EMPTIES] * 2, lambda _: "") == "torch.cuda.empty_cache()"
    assert device_wait([STEP, STEP], lambda _: "") == ""


def test_a_rank_that_waits_for_its_gpu_may_have_a_gpu_that_computes() -> None:
    spins = process(STEP, STEP, state="R", cpu=0.99, gpu_wait=".item()")
    sleeps = process(STEP, STEP, cpu=0.0, gpu_wait=".item()")
    for seen in (spins, sleeps):
        told = activity_of(sight(seen))
        assert (told.kind, told.reason) == ("spinning", "waits for its GPU in .item() in train.py:52 step")
    assert activity_of(sight(process(SPINS, SPINS, state="R", cpu=0.99))).reason.startswith("uses 99 %")


def test_lines_are_read_as_the_process_sees_its_files(tmp_path: Path) -> None:
    program = tmp_path / "proc" / "7" / "root" / "app" / "train.py"
    program.parent.mkdir(parents=True)
    program.write_text("first\nloss.item()\n")
    root = str(tmp_path / "proc")
    assert line_of(7, Frame("step", "/app/train.py", 2), root) == "loss.item()"
    for file, line in (
        ("/app/train.py", 3),
        ("/app/train.py", 0),
        ("/app/none.py", 1),
        ("train.py", 1),
        ("<string>", 1),
    ):
        assert line_of(7, Frame("step", file, line), root) == ""
    os.mkfifo(program.parent / "pipe.py")
    assert line_of(7, Frame("step", "/app/pipe.py", 1), root) == "", "a pipe is not waited for"
    assert line_of(7, Frame("step", "/app", 1), root) == ""


def test_a_process_has_a_gpu_if_it_has_opened_one(tmp_path: Path) -> None:
    descriptors = tmp_path / "7" / "fd"
    descriptors.mkdir(parents=True)
    (descriptors / "0").symlink_to("/dev/null")
    assert not uses_gpu(7, str(tmp_path)) and not uses_gpu(8, str(tmp_path))
    (descriptors / "5").symlink_to("/dev/nvidia0")
    assert uses_gpu(7, str(tmp_path))
    assert not uses_gpu(os.getpid()) or os.path.exists("/dev/nvidiactl")


def test_an_old_agent_that_says_nothing_of_it_is_understood() -> None:
    told = msgspec.to_builtins(process(STEP))
    told.pop("gpu_wait", None)
    assert msgspec.convert(told, type(process(STEP))).gpu_wait == ""
