"""How long until a recipe of docs/recipes trains again after a rank was killed: without and with what `--preload auto` learns.

    python bench/frameworks.py --rounds 3 --names transformers,lightning

Rank 1 holds still after step 12 of the first attempt, until waiting workers are ready, and is killed. Seconds count from the
kill to the first optimizer step of rank 0 in the next attempt. torchrun is in `bench/recovery.py`. The frameworks are installed
once, as for the tests (`tests/framework_parts.py`). The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import framework_parts
import jobs
from shown_commands import RECIPES, blocks
from sidebyside import print_result, spread

NAMES = ("transformers", "accelerate", "lightning", "fsdp2", "deepspeed")
SIDES = {
    "only_torch": ("--preload", "torch,torch.distributed"),
    "auto": ("--preload", "auto"),
}
LIMIT_S = 300.0
#: Notes each attempt's first step, and has rank 1 hold still in the first attempt.
NOTED = """
import os, runpy, sys, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook
who = (os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"])
steps = 0
def hook(*_):
    global steps
    steps += 1
    if steps == 1:
        Path("first-%s-%s.part" % who).write_text(repr(time.monotonic()))
        os.rename("first-%s-%s.part" % who, "first-%s-%s" % who)
    if steps == 12 and who == ("0", "1"):
        Path("pid.part").write_text(str(os.getpid()))
        os.rename("pid.part", "pid")
        time.sleep(600)
register_optimizer_step_post_hook(hook)
del sys.argv[:1]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def killed_to_step_s(name: str, side: str, folder: Path) -> float:
    """Return the seconds of one round."""
    (text,) = [block.text for block in blocks(RECIPES / f"{name}.md") if block.values("file") == ["train.py"]]
    (folder / "train.py").write_text(text)
    (folder / "noted.py").write_text(NOTED)
    python = framework_parts.python()
    options = ("--log-dir", "runs", "--run-id", "job", "--nproc-per-node", "2", *SIDES[side])
    command = [python, "-m", "robust_run", *options, "noted.py", "train.py"]
    env = {**os.environ, "ROBUST_WARM_DAEMON": "off", **framework_parts.environment()}
    with open(folder / "log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        pid = int(jobs.wait_for_file_in(folder, "pid", LIMIT_S))
        job = jobs.Job(process, folder / "runs", "job")  # type: ignore[arg-type]
        jobs.wait_for(lambda: len(job.after("warm_ready", 2, "standby_ready")) >= 2, "waiting workers", LIMIT_S)
        killed_at_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        stepped_at_s = float(jobs.wait_for_file_in(folder, "first-1-0", LIMIT_S))
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return stepped_at_s - killed_at_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--names", default=",".join(NAMES), help="recipes, separated by commas")
    args = parser.parse_args()
    names = args.names.split(",")
    took: dict[tuple[str, str], list[float]] = {(name, side): [] for name in names for side in SIDES}
    for _ in range(args.rounds):
        for name, side in took:
            with tempfile.TemporaryDirectory(prefix="bench-frameworks-", ignore_cleanup_errors=True) as folder:
                took[name, side].append(killed_to_step_s(name, side, Path(folder)))
                print(f"{name:14}{side:12}{took[name, side][-1]:8.2f} s", flush=True)
    cases: list[dict[str, Any]] = [
        {"name": name, "side": side, "kill_to_step_s": spread(values)} for (name, side), values in took.items()
    ]
    ratios = [
        {
            "ratio": f"{name}: kill to step, auto over only torch",
            "median": round(statistics.median(took[name, "auto"]) / statistics.median(took[name, "only_torch"]), 3),
            "rounds": [
                round(ours / theirs, 3)
                for ours, theirs in zip(took[name, "auto"], took[name, "only_torch"], strict=True)
            ],
            "aim": "< 1",
        }
        for name in names
    ]
    print_result("frameworks", cases, ratios=ratios, rounds=args.rounds)


if __name__ == "__main__":
    main()
