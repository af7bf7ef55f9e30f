"""Jobs of one worker here start from the warm process, too."""

from __future__ import annotations

import pytest
import warm_ground


@pytest.fixture(autouse=True)
def as_jobs_of_several(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what jobs of several workers have by default: the warm process was started with it, and no job without it is forked."""
    if warm_ground.fits(request.node):
        for name, value in warm_ground.SEVERAL.items():
            monkeypatch.setenv(name, value)
