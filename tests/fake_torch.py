"""A torch as far as counting steps needs one, for workers of tests."""

from __future__ import annotations

from pathlib import Path

#: A torch as far as counting needs one: starting the real one takes seconds.
FAKE_TORCH = {
    "torch/__init__.py": "__version__ = '2.13.0+cpu'\nfrom torch import compiler, optim\n",
    "torch/compiler.py": "def is_dynamo_compiling():\n    return False\n",
    "torch/optim/__init__.py": "from torch.optim.optimizer import Optimizer\n",
    "torch/optim/optimizer.py": """
import torch
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
class Optimizer:
    def step(self):
        for hook in hooks:
            hook(self, (), {})
""",
}


def write_fake_torch(folder: Path) -> None:
    """Put it where a program in this folder finds it."""
    for name, text in FAKE_TORCH.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
