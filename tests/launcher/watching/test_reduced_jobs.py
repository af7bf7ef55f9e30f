"""`--check-reduced` in a real job: a bit that flips in what one of three ranks has reduced is seen, and the rank is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jobs import running, script, wait_for
from small_optimizer import SGD

#: At step 41 a bit flips on rank 1 while the sum is on its way to the program: in the memory of the machine, as it were.
TRAIN = f"""
import os, time
import torch, torch.distributed as dist
{SGD}
dist.init_process_group("gloo")
rank = dist.get_rank()
weights = torch.nn.Parameter(torch.zeros(5000))
optimizer = SGD([weights], lr=0.1)
step, flipped = 0, False
while True:
    step += 1
    weights.grad = torch.linspace(0.1, 0.9, 5000) * (rank + 1)
    work = dist.all_reduce(weights.grad, async_op=True)
    if step >= 41 and step % 5 == 0 and rank == 1 and not flipped:
        while not work.is_completed():
            time.sleep(0.001)
        weights.grad.numpy().view("int32")[4321] ^= 1 << 3
        flipped = True
        open("flipped", "w").close()
    work.wait()
    optimizer.step()
    stop = torch.tensor([float(os.path.exists("stop"))])
    dist.all_reduce(stop)
    if stop.item():
        break
    time.sleep(0.01)
dist.destroy_process_group()
"""


def test_the_rank_on_which_a_bit_of_a_reduced_value_flips_is_named_and_training_goes_on(tmp_path: Path) -> None:
    options = ("--nproc-per-node", "3", "--check-reduced", "5")
    with running(tmp_path, *options, script(tmp_path, TRAIN)) as job:
        wait_for(lambda: (tmp_path / "flipped").exists(), "the bit to flip")
        (told,) = wait_for(lambda: job.actions("record_incident"), f"it to be seen:\n{job.journal()[-3:]}")
        shown = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", "status", str(job.run_dir)]
        assert "numbers.reduced" in str(job.events("health_seen"))
        status = subprocess.run(shown, capture_output=True, text=True, timeout=120, check=False).stdout
        (tmp_path / "stop").touch()
        assert job.finish() == 0, job.err
    verdict = told["verdict"]
    assert (verdict["rule"], verdict["ranks"], told["action"]) == ("numbers.reduced", [1], "report")
    assert "is not on rank 1 (" in verdict["sentence"] and "what it is on ranks 0 and 2" in verdict["sentence"]
    assert "of 5000, float32" in verdict["sentence"] and "all_reduce #" in verdict["sentence"]
    assert "rank 1" in status
    assert len(job.actions("start_attempt")) == 1
