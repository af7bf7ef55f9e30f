"""The stream of a GPU on which marks are made. `sitecustomize` loads this file by its path; it starts nothing of CUDA."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

    def load(name: str) -> ModuleType:
        """Return a module made of the file of this name beside this one; `sitecustomize` puts it here."""
        ...


timing = load("phase_timer")


class Stream:
    """The stream of a GPU on which a program makes its steps: where marks are made."""

    code = timing.EVENTS

    def __init__(self, torch: Any) -> None:
        """CUDA has been started."""
        self.torch = torch
        self.index = torch.cuda.current_device()
        self.current, self.is_capturing = torch._C._cuda_getCurrentStream, torch._C._cuda_isCurrentStreamCapturing
        self.home: Any = None
        self.stream: Any = None

    def move(self) -> None:
        """Take the stream that is current now, at the end of a step."""
        home = self.current(self.index)
        if home != self.home:
            self.home, self.stream = home, self.torch.cuda.current_stream(self.index)

    def here(self) -> Any:
        """Return that stream if it is the current one, and no graph is captured from it; else None."""
        return self.stream if self.current(self.index) == self.home and not self.is_capturing() else None

    def is_home(self, stream: Any) -> bool:
        """Whether this is that stream."""
        return self.home is not None and (stream.stream_id, stream.device_index) == tuple(self.home[:2])

    def event(self) -> Any:
        """Return an event that can be timed. The driver makes it when it is first recorded."""
        return self.torch.cuda.Event(enable_timing=True)
