"""Generated fleets and the detectors that ours was compared with are parts of the bench."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
