"""Train a small byte-level GPT on the source of the Python standard library.

    python train_gpt.py                              # one process
    torchrun --nproc-per-node 2 train_gpt.py         # two workers on this machine
    robust-run --nproc-per-node 2 train_gpt.py       # the same, healed when something breaks

It needs torch and nothing else, and knows nothing of the launcher. Every --checkpoint-every steps rank 0 writes a
checkpoint to --out; a run that starts with the same --out goes on from the newest good one. The run is deterministic:
killed and resumed any number of times, it ends with bit for bit the weights of a run that nobody disturbed.

    robust-run --nproc-per-node 2 --ckpt-dir DIR train_gpt.py     # the same, and a failure costs one step

With --ckpt-dir DIR (a path or URL), which robust-run hands on, `robust_run.checkpoint` keeps the training instead: each
step in memory, where robust-run offers that, and each --checkpoint-every steps in DIR, verified on every read. That works
under python and torchrun, too, without the memory.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import io
import json
import math
import os
import sysconfig
import time
from dataclasses import dataclass
from typing import Any

# Read by cuBLAS when it starts: without it, matrix products on a GPU are not reproducible.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - the name everybody knows it by
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TEXT_LIMIT_BYTES = 2_000_000
HELD_OUT = 0.1
KEPT_CHECKPOINTS = 3
WARMUP_STEPS = 10
EVALUATION_BATCHES = 4


@dataclass(frozen=True)
class Place:
    """Which of how many processes this is, and where it computes."""

    rank: int
    world_size: int
    device: torch.device

    def say(self, line: str) -> None:
        """Print a line once per job, at once."""
        if self.rank == 0:
            print(line, flush=True)


# --- the model ------------------------------------------------------------------------------------------------------


class Block(nn.Module):  # type: ignore[misc]
    """Causal self-attention and a feed-forward layer, each added to what came in."""

    def __init__(self, width: int, heads: int, block: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        future = torch.triu(torch.ones(block, block, dtype=torch.bool), diagonal=1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        # Attention is spelled out because fused kernels are not all deterministic on a GPU.
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(x)).split(width, dim=2)
        )
        scores = (q @ k.transpose(2, 3)) / math.sqrt(width // self.heads)
        scores = scores.masked_fill(self.future[:length, :length], -math.inf)
        mixed = (scores.softmax(dim=3) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.attention_out(mixed)
        return x + self.feed(self.feed_norm(x))


class ByteGPT(nn.Module):  # type: ignore[misc]
    """Predicts the next byte from up to `block` bytes before it."""

    def __init__(self, width: int, layers: int, heads: int, block: int) -> None:
        super().__init__()
        self.block = block
        self.byte = nn.Embedding(256, width)
        self.position = nn.Embedding(block, width)
        self.blocks = nn.ModuleList(Block(width, heads, block) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        for embedding in (self.byte, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.byte(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --- the data -------------------------------------------------------------------------------------------------------


def read_text() -> tuple[Tensor, Tensor]:
    """Training and held-out text: the first 2 MB of the standard library's modules in the order of their names."""
    text = bytearray()
    for path in sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "*.py"))):
        if len(text) >= TEXT_LIMIT_BYTES:
            break
        with open(path, "rb") as file:
            text += file.read()
    whole = torch.frombuffer(text[:TEXT_LIMIT_BYTES], dtype=torch.uint8)
    cut = int(len(whole) * (1 - HELD_OUT))
    return whole[:cut], whole[cut:]


def draw_batch(text: Tensor, batch: int, block: int, key: str) -> tuple[Tensor, Tensor]:
    """A batch that depends on the text and the key and on nothing that happened before."""
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(text) - block - 1, (batch,), generator=generator).tolist()
    rows = torch.stack([text[start : start + block + 1] for start in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor], device: torch.device) -> Tensor:
    """Mean loss in nats per byte."""
    tokens, targets = batch[0].to(device), batch[1].to(device)
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


# --- checkpoints ----------------------------------------------------------------------------------------------------


def save_checkpoint(out: str, step: int, content: dict[str, Any]) -> None:
    """Write a checkpoint so that it is there whole or not at all; its name carries the digest of its bytes."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    data = buffer.getvalue()
    name = f"step-{step:08d}-{hashlib.sha256(data).hexdigest()[:16]}.pt"
    unfinished = os.path.join(out, "checkpoint.tmp")
    with open(unfinished, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, os.path.join(out, name))
    folder = os.open(out, os.O_RDONLY)
    os.fsync(folder)  # makes the new name itself survive a power cut
    os.close(folder)
    for old in checkpoints(out)[KEPT_CHECKPOINTS:]:
        os.unlink(old)


def checkpoints(out: str) -> list[str]:
    """Paths of the checkpoints in `out`, newest first."""
    return sorted(glob.glob(os.path.join(glob.escape(out), "step-*.pt")), reverse=True)


def read_checkpoint(path: str) -> dict[str, Any]:
    """Content of a checkpoint. Raises ValueError if its bytes are not those that were written."""
    with open(path, "rb") as file:
        data = file.read()
    if not path.endswith(f"-{hashlib.sha256(data).hexdigest()[:16]}.pt"):
        raise ValueError(f"its {len(data)} bytes do not match the digest in its name")
    content: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return content


def is_good(path: str) -> bool:
    """Whether a checkpoint can be gone on from; says why not."""
    try:
        read_checkpoint(path)
    except (ValueError, OSError) as error:
        print(f"skipped checkpoint {path}: {error}", flush=True)
        return False
    return True


def newest_good_checkpoint(out: str, place: Place) -> str | None:
    """Path of the checkpoint that all ranks go on from: rank 0 chooses, so that they cannot disagree."""
    chosen = next(filter(is_good, checkpoints(out)), "") if place.rank == 0 else ""
    if dist.is_initialized():
        chosen = broadcast_text(chosen, place.device)
    return chosen or None


def broadcast_text(text: str, device: torch.device) -> str:
    """What rank 0 has, on every rank."""
    data = os.fsencode(text)
    size = torch.tensor([len(data)], device=device)
    dist.broadcast(size, src=0)
    content = torch.zeros(int(size), dtype=torch.uint8, device=device)
    if len(data) == len(content):
        content.copy_(torch.tensor(list(data), dtype=torch.uint8))
    dist.broadcast(content, src=0)
    return os.fsdecode(bytes(content.tolist()))


def resume(model: nn.Module, optimizer: torch.optim.Optimizer, config: dict[str, Any], out: str, place: Place) -> int:
    """Load the newest good checkpoint, if there is one. Returns the number of steps already done."""
    path = newest_good_checkpoint(out, place)
    if path is None:
        return 0
    content = read_checkpoint(path)
    check_config(path, content["config"], config, place)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    place.say(f"resumed from step {content['step']} ({path})")
    return int(content["step"])


def go_on(state: dict[str, Any], folder: str, place: Place) -> int:
    """Load what robust-run has kept into the state, if there is anything. Returns the number of steps already done."""
    from robust_run import checkpoint

    kept: dict[str, Any] = {"config": {}}
    if checkpoint.load(kept, folder=folder) is None:
        return 0
    check_config(folder, kept["config"], state["config"], place)
    done = checkpoint.load(state, folder=folder) or 0
    place.say(f"resumed from step {done} ({os.environ.get('ROBUST_RESUME') or folder})")
    return done


def keep(state: dict[str, Any], step: int, args: argparse.Namespace) -> None:
    """Have robust-run keep a step; it says which of them go to the folder, of which the newest few stay there."""
    from robust_run import checkpoint
    from robust_run.ckpt_io import catalog

    is_last = step == args.steps
    checkpoint.save(state, step=step, folder=args.ckpt_dir, every=1 if is_last else args.checkpoint_every)
    if (is_last or step % args.checkpoint_every == 0) and (not dist.is_initialized() or dist.get_rank() == 0):
        catalog.prune(args.ckpt_dir, keep=KEPT_CHECKPOINTS)


def check_config(path: str, saved: dict[str, Any], config: dict[str, Any], place: Place) -> None:
    """Exit with a line unless a checkpoint is of this model, trained this way."""
    for name, value in config.items():
        was = saved.get(name)
        if was != value and name == "world_size":
            place.say(f"note: {path} was written by {was} processes, now {value}: the weights will differ")
        elif was != value:
            raise SystemExit(f"{path} was trained with {name} {was}, not {value}: give that, or another folder")


# --- training -------------------------------------------------------------------------------------------------------


def take_place() -> Place:
    """Join the other processes if a launcher started several, else be alone."""
    gpu = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    if "RANK" not in os.environ:
        return Place(0, 1, device)
    dist.init_process_group("nccl" if gpu else "gloo")
    return Place(dist.get_rank(), dist.get_world_size(), device)


def across_processes(model: nn.Module, place: Place) -> nn.Module:
    """The model with its gradients averaged over all processes."""
    if not dist.is_initialized():
        return model
    parallel = DistributedDataParallel(model)
    # DDP regroups gradients after its first backward pass, and so changes the order in which they are summed. One pass
    # that trains nothing gets that over with; else the first step after a resume would differ in the last bits.
    parallel(torch.zeros(1, 1, dtype=torch.long, device=place.device)).sum().backward()
    return parallel


def train(args: argparse.Namespace, place: Place, text: Tensor) -> tuple[ByteGPT, int]:
    """Train up to step `args.steps`, writing checkpoints on the way. Returns the model and the step it is at."""
    torch.manual_seed(args.seed)
    model = ByteGPT(args.width, args.layers, args.heads, args.block).to(place.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    config = {name: getattr(args, name) for name in ("width", "layers", "heads", "block", "batch", "lr", "seed")}
    config["world_size"] = place.world_size
    state = {"model": model, "optimizer": optimizer, "config": config}
    done = go_on(state, args.ckpt_dir, place) if args.ckpt_dir else resume(model, optimizer, config, args.out, place)
    parallel = across_processes(model, place)
    size = sum(parameter.numel() for parameter in model.parameters())
    place.say(f"{size:,} parameters, world size {place.world_size}, {place.device.type}, {done} steps done")
    began_s = time.perf_counter()
    for step in range(done + 1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, step / WARMUP_STEPS)
        optimizer.zero_grad()
        batch = draw_batch(text, args.batch, args.block, f"train {args.seed} {step} {place.rank}")
        loss = loss_of(parallel, batch, place.device)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.log_every == 0 or step in (1, args.steps):
            per_step_s = (time.perf_counter() - began_s) / (step - done)
            place.say(f"step {step}/{args.steps}  loss {loss.item():.4f}  {per_step_s:.3f} s/step")
        if args.ckpt_dir:
            keep(state, step, args)
        elif place.rank == 0 and (step % args.checkpoint_every == 0 or step == args.steps):
            weights, moments = model.state_dict(), optimizer.state_dict()
            content = {"model": weights, "optimizer": moments, "step": step, "config": config}
            save_checkpoint(args.out, step, content)
    return model, max(done, args.steps)


def evaluate(model: nn.Module, text: Tensor, args: argparse.Namespace, device: torch.device) -> float:
    """Mean loss over a few batches that are the same every time."""
    with torch.no_grad():
        losses = [
            loss_of(model, draw_batch(text, args.batch, args.block, f"evaluate {number}"), device)
            for number in range(EVALUATION_BATCHES)
        ]
    return float(torch.stack(losses).mean())


def sample(model: ByteGPT, count: int, seed: int, device: torch.device) -> str:
    """What the model writes after `def `, `count` bytes of it."""
    generator = torch.Generator().manual_seed(seed)
    written = list(b"def ")
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([written[-model.block :]], device=device))[0, -1]
            written.append(int(torch.multinomial((logits / 0.8).softmax(0).cpu(), 1, generator=generator)))
    return bytes(written).decode("utf-8", errors="replace")


def weights_sha256(model: nn.Module) -> str:
    """Digest of all parameters in order, bit for bit."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        data = bytearray(parameter.numel() * parameter.element_size())
        torch.frombuffer(data, dtype=parameter.dtype).copy_(parameter.detach().flatten())
        digest.update(data)
    return digest.hexdigest()


def finish(args: argparse.Namespace, place: Place, model: ByteGPT, step: int, texts: tuple[Tensor, Tensor]) -> None:
    """Say how good the model is and which weights exactly it has; keep the same in final.json."""
    train_loss, val_loss = (evaluate(model, text, args, place.device) for text in texts)
    sha256 = weights_sha256(model)
    final = {"step": step, "train_loss": train_loss, "val_loss": val_loss, "weights_sha256": sha256}
    with open(os.path.join(args.out, "final.json"), "w", encoding="utf-8") as file:
        json.dump(final, file)
    if args.sample:
        place.say(sample(model, args.sample, args.seed, place.device))
    place.say(f"done at step {step}  train loss {train_loss:.4f}  val loss {val_loss:.4f}  weights sha256 {sha256}")


def parse_arguments() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        description="Train a small byte-level GPT on the Python standard library.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=60, help="train up to this step")
    parser.add_argument("--batch", type=int, default=16, help="sequences per process and step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--block", type=int, default=128, help="length of a sequence in bytes")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--out", default="gpt-out", help="folder for checkpoints and final.json")
    kept = os.environ.get("ROBUST_CKPT_DIR", "")
    parser.add_argument("--ckpt-dir", default=kept, help="folder in which robust-run keeps the training, path or URL")
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps")
    parser.add_argument("--log-every", type=int, default=5, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sample", type=int, default=0, help="at the end, print this many bytes written by the model")
    args = parser.parse_args()
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}: change one of them")
    return args


def main() -> None:
    """Train, and say what came of it."""
    args = parse_arguments()
    torch.set_num_threads(1)  # one process per core; and sums are added in the same order on every machine
    torch.use_deterministic_algorithms(True)
    place = take_place()
    os.makedirs(args.out, exist_ok=True)
    texts = read_text()
    model, step = train(args, place, texts[0])
    if place.rank == 0:
        finish(args, place, model, step, texts)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
