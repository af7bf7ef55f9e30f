"""Train a small network and keep every step: killed at any time, it ends with bit for bit the same weights.

    ROBUST_CKPT_DIR=ckpt python train_every_step.py
    robust-run --nproc-per-node 2 train_every_step.py      # with memory, at most one step is lost

The whole state is in one dict: `checkpoint.save` after each step, `checkpoint.load` at the start, and nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn

from robust_run import checkpoint, report


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network and keep every step.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--die-after", type=int, default=0, help="exit with 1 after this step, in the first attempt only"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    is_one_of_many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_one_of_many:
        dist.init_process_group("gloo")

    rank = dist.get_rank() if is_one_of_many else 0
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(args.width, args.width), nn.Dropout(0.1), nn.Tanh(), nn.Linear(args.width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    torch.manual_seed(1 + rank)  # from here on each rank draws its own data

    state = {"model": model, "optimizer": optimizer, "schedule": schedule}
    begin = checkpoint.load(state) or 0
    if rank == 0:
        print(f"begins after step {begin}", flush=True)
    for step in range(begin + 1, args.steps + 1):
        inputs = torch.randn(32, args.width)
        loss = (model(inputs) - inputs.sum(1, keepdim=True).tanh()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if is_one_of_many:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        optimizer.step()
        schedule.step()
        report(step=step, loss=loss.item())
        checkpoint.save(state, step=step)
        if step == args.die_after and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" and begin == 0:
            raise SystemExit(1)

    weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    if rank == 0:
        print(f"ends after step {args.steps}  weights {hashlib.sha256(weights).hexdigest()}", flush=True)
    if is_one_of_many:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
