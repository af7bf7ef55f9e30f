"""Minder's denoiser (arXiv 2411.01791, section 4.2): one small LSTM-VAE per metric, trained on healthy windows.

Sizes are the paper's: windows of 8, hidden size 4, latent size 8, one layer. All metrics' models are trained and run together,
as one batched product each: they share nothing. Imports torch when it is used, which is in the bench alone: measured, it does
not earn its cost (docs/outliers.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from outlier_contenders.pairwise import WINDOW

if TYPE_CHECKING:
    from robust_run.health.outliers.types import Array

HIDDEN, LATENT = 4, 8
KL_WEIGHT = 1e-5


class LstmVae:
    """Models of all metrics. `train` once, then call it: machines x metrics x window in, the same shape out."""

    def __init__(self, metrics: int, seed: int = 0) -> None:
        import torch

        maker = torch.Generator().manual_seed(seed)

        def made(*shape: int) -> Any:
            return (torch.randn(metrics, *shape, generator=maker) * 0.3).requires_grad_()

        self._metrics = metrics
        self._maker = maker
        self._weights = {
            "encode": made(1 + HIDDEN, 4 * HIDDEN),
            "encode_bias": made(1, 4 * HIDDEN),
            "latent": made(HIDDEN, 2 * LATENT),
            "latent_bias": made(1, 2 * LATENT),
            "decode": made(LATENT + HIDDEN, 4 * HIDDEN),
            "decode_bias": made(1, 4 * HIDDEN),
            "out": made(HIDDEN, 1),
            "out_bias": made(1, 1),
        }

    def __call__(self, points: Array) -> Array:
        """Return what the models make of the windows, without sampling."""
        import numpy as np
        import torch

        with torch.no_grad():
            made, _, _ = self._reconstruct(torch.as_tensor(points, dtype=torch.float32).permute(1, 0, 2), noisy=False)
        return np.asarray(made.permute(1, 0, 2).numpy(), dtype=np.float64)

    def train(self, windows: Array, steps: int = 1500, batch: int = 512) -> float:
        """Fit to windows (any number x metrics x window, healthy, 0..1). Returns the last mean squared error."""
        import torch

        data = torch.as_tensor(windows, dtype=torch.float32).permute(1, 0, 2)
        optimizer = torch.optim.Adam(self._weights.values(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        error = torch.zeros(())
        for _ in range(steps):
            chosen = torch.randint(data.shape[1], (batch,), generator=self._maker)
            sample = data[:, chosen]
            made, mean, log_variance = self._reconstruct(sample, noisy=True)
            error = ((made - sample) ** 2).mean()
            divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).mean()
            optimizer.zero_grad()
            (error + KL_WEIGHT * divergence).backward()
            optimizer.step()
            schedule.step()
        return float(error.detach())

    def _reconstruct(self, data: Any, *, noisy: bool) -> tuple[Any, Any, Any]:
        import torch

        weights = self._weights
        hidden = cell = torch.zeros(self._metrics, data.shape[1], HIDDEN)
        for moment in range(WINDOW):
            seen = data[:, :, moment : moment + 1]
            hidden, cell = _cell(seen, hidden, cell, weights["encode"], weights["encode_bias"])
        both = torch.baddbmm(weights["latent_bias"], hidden, weights["latent"])
        mean, log_variance = both[:, :, :LATENT], both[:, :, LATENT:].clamp(-12, 4)
        latent = mean
        if noisy:
            latent = mean + (0.5 * log_variance).exp() * torch.randn(mean.shape, generator=self._maker)
        hidden = cell = torch.zeros(self._metrics, data.shape[1], HIDDEN)
        made = []
        for _ in range(WINDOW):
            hidden, cell = _cell(latent, hidden, cell, weights["decode"], weights["decode_bias"])
            made.append(torch.baddbmm(weights["out_bias"], hidden, weights["out"]))
        return torch.cat(made, dim=2), mean, log_variance


def _cell(seen: Any, hidden: Any, cell: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
    import torch

    gates = torch.baddbmm(bias, torch.cat((seen, hidden), dim=2), weight)
    keep, take, show, new = gates.chunk(4, dim=2)
    cell = torch.sigmoid(keep + 1) * cell + torch.sigmoid(take) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(cell), cell
