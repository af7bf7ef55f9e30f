"""Makes the program, the table and the harness importable, for tests and for the bench alike."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
