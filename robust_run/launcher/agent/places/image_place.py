"""The image of a job on one node, as a place for its workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from robust_run.clock import Clock
from robust_run.errors import PlatformError
from robust_run.launcher.agent.places.made_place import Hears
from robust_run.launcher.agent.places.own_package import library, moved
from robust_run.launcher.agent.places.place import HeldPlace
from robust_run.launcher.agent.places.start_recording import RecordedPart
from robust_run.launcher.agent.thread_messages import write_report
from robust_run.launcher.model.job import JobSpec
from robust_run.launcher.model.job_parts import ImageUse
from robust_run.prefetch.inside import Inside
from robust_run.prefetch.launch import Prepared
from robust_run.prefetch.window import ImageStart

if TYPE_CHECKING:
    from robust_run.launcher.agent.places.setup_place import SetupBrought

#: Variables that would put a launcher inside a worker into an image again.
_OURS = ("ROBUST_IMAGE", "ROBUST_IMAGE_WRITABLE", "ROBUST_SETUP", "ROBUST_SETUP_FILE", "ROBUST_REFRESH_SETUP")


@dataclass(frozen=True)
class MadeImage:
    """An image that is mounted."""

    inside: Inside
    prepared: Prepared
    laid: Prepared | None = None
    """The same for the set-up that is laid over it, where that comes as it is read."""

    @property
    def reason(self) -> str:
        """Why it is lost; "" while it is not."""
        return self.inside.reason

    @property
    def namespaces(self) -> tuple[int, ...]:
        """Descriptors of the namespaces that programs run in."""
        return self.inside.namespaces

    def stop(self) -> None:
        """Let it go."""
        self.inside.stop()


class ImagePlace(HeldPlace[MadeImage]):
    """One node's image. Made by `image_start.open_image`; used as `HeldPlace` says."""

    kind = "image"
    uses: tuple[str, ...] = ("image",)
    where = "the image"

    def __init__(
        self,
        spec: JobSpec,
        image: ImageUse,
        clock: Clock,
        say: Callable[[str], None],
        start: Callable[[Hears], MadeImage],
        brought: Callable[[], SetupBrought] | None = None,
    ) -> None:
        """`start` makes the place, given who hears of it. Raises `ImageError`. `brought`: the set-up that is laid over the image,
        asked for once that is made; None: there is none.
        """
        super().__init__(spec, f"image {image.url}", clock, say, start)
        self._cache = image.cache
        self.library = library(image.cache)
        self._brought: SetupBrought | None = None
        if brought is not None:
            from robust_run.launcher.agent.places.setup_place import snapshot_of

            self._brought = brought()
            self.uses = ("image", "setup", "setup-built") if self._brought.was_built else ("image", "setup")
            self.snapshot = snapshot_of(self._brought)
        if spec.is_python and not self._python:
            self._made.stop()
            raise PlatformError(
                f"--image {image.url}: there is no python3 on the PATH of the image; set PYTHON_EXEC to where it is"
            )

    @property
    def sentence(self) -> str:
        """See `HeldPlace`."""
        made = f"{self.name}: {self._made.inside.ready.chosen}; {self._made.prepared.plan.why}"
        if self._brought is None:
            return made
        from robust_run.launcher.agent.places.setup_place import words_of

        return f"{made}; set-up {self._brought.plan.key.digest[:16]} in it: {words_of(self._brought)}"

    @property
    def _python(self) -> str:
        if os.environ.get("PYTHON_EXEC"):
            return self._spec.argv[0]
        return self._made.inside.python

    def program(self, argv: Sequence[str]) -> tuple[str, ...]:
        """See `HeldPlace`: with the image's Python in place of ours."""
        return (self._python, *argv[1:]) if self._spec.is_python else tuple(argv)

    def enter(self, argv: Sequence[str]) -> tuple[str, ...]:
        """See `HeldPlace`."""
        return tuple(self._made.inside.command(argv, self._cwd))

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """See `HeldPlace`."""
        return {name: value for name, value in self._made.inside.environment(env).items() if name not in _OURS}

    def moved(self, env: Mapping[str, str]) -> dict[str, str]:
        """See `HeldPlace`."""
        return moved(env, self._cache)

    def report(self, path: str, start: ImageStart | None) -> None:
        """See `HeldPlace`."""
        if start is not None:
            write_report(path, start, self._say)
        elif self._brought is not None:
            from robust_run.launcher.agent.places.setup_place import keep

            self._report_setup(None)
            keep(self._beside(path), self._brought, self._say)

    @staticmethod
    def _beside(path: str) -> str:
        return os.path.join(os.path.dirname(os.path.dirname(path)), "setup", os.path.basename(path))

    def _report_setup(self, start: ImageStart | None) -> None:
        """Write how the set-up's start was; `start`: what was read of it, once that is over."""
        from robust_run.launcher.agent.places.setup_place import report_of

        if self._brought is not None and self._start_file:
            made = report_of(self._brought, self._made.inside.ready.chosen, start)
            write_report(self._beside(self._start_file), made, self._say)

    def _recorded(self, made: MadeImage) -> list[RecordedPart]:
        """See `HeldPlace`."""
        parts, laid = super()._recorded(made), made.inside.laid
        if made.laid is not None and laid is not None:
            parts.append(RecordedPart("set-up", laid, made.laid, self._report_setup))
        return parts
