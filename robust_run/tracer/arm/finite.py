"""Whether a model is still made of numbers: looked at after each of the first steps of code that has yet to prove itself.

`sitecustomize` loads this file by its path. Parameters are looked at, not gradients: a step that was skipped for an infinite
gradient (mixed precision) is no fault. Nothing communicates: of a sharded parameter, each rank looks at its own part.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def is_finite(optimizer: Any, torch: Any) -> bool:
    """Whether all parameters of an optimizer are finite numbers."""
    verdict = None
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                if not own.is_floating_point() or own.numel() == 0 or own.is_meta:
                    continue
                fine = torch.isfinite(own.detach()).all()
                if verdict is not None and verdict.device != fine.device:
                    if not bool(verdict):
                        return False
                    verdict = None
                verdict = fine if verdict is None else torch.logical_and(verdict, fine)
    return verdict is None or bool(verdict)
