"""What would make the next start of a job shorter, the best first, with seconds that it may save. Pure.

Seconds are estimates: a phase's length without what it takes with that switched on, as `bench/` measured it; where a
measured length of the same job is there (a restart, the fastest node), that counts instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from robust_run.report.startup.phases import seconds_of
from robust_run.report.startup.types import Advice, AttemptStartup, Phase, PhaseSummary, Startup
from robust_run.report.startup.words import plain, seconds

#: Less than this is not worth a change.
LEAST_S = 0.5
#: Imports with torch's files in memory (`bench/startup.py`: `import torch` takes 1 to 2 s), and from a warm process.
WARM_FILES_S, WARM_PROCESS_S = 2.0, 0.1
#: A process that has read less than this had what it imported in memory: it was slow for another reason (a busy CPU).
LEAST_READ_BYTES = 32 << 20
#: A checkpoint read in parallel takes so much of the time of DCP and torch.load (`bench/ckpt.py`, cold).
CKPT_PART = 0.53
#: An image or a set-up that is there already (`bench/image_start.py`, `bench/env_restore.py`).
RESTORED_S = 0.5
#: A restored set-up that takes longer is far away.
FAR_S = 3.0
#: A script that takes longer before robust-run does most likely install something.
INSTALLS_S = 5.0


def advise(startup: Startup, number: int | None = None) -> tuple[Advice, ...]:
    """Return what would make starts like that of an attempt shorter; `number` None: the newest that is known in detail."""
    attempt = chosen(startup, number)
    if attempt is None or attempt.critical is None:
        return ()
    spent = seconds_of(attempt.critical)
    found = [each for rule in RULES for each in rule(attempt, spent, startup) if each.saves_s >= LEAST_S]
    return tuple(sorted(found, key=lambda each: -each.saves_s))


def chosen(startup: Startup, number: int | None) -> AttemptStartup | None:
    """Return an attempt by its number; without one, the newest."""
    if number is None:
        return startup.attempts[-1] if startup.attempts else None
    return next((each for each in startup.attempts if each.attempt == number), None)


Spent = dict[Phase, float]


def _phase(attempt: AttemptStartup, phase: Phase) -> PhaseSummary | None:
    return next((each for each in attempt.phases if each.phase == phase), None)


def _imports(attempt: AttemptStartup, spent: Spent, startup: Startup) -> Iterator[Advice]:
    """Modules that are imported again and again, or read from a slow disk."""
    taken_s = spent.get("imports", 0.0)
    spawned = attempt.critical is not None and attempt.critical.how == "spawn"
    if attempt.attempt > 0:
        if spawned and "no-warm" in attempt.uses:
            yield Advice(
                what="leave out --no-warm", why="workers of restarts import everything again", saves_s=taken_s - 0.1
            )
        elif not spawned and "preload-auto" not in attempt.uses:
            yield Advice(
                what="--preload auto",
                why=f"waiting workers lack what is imported besides torch ({seconds(taken_s)} s at each restart)",
                saves_s=taken_s - 0.1,
            )
        elif not spawned:
            yield Advice(
                what="--preload torch,torch.distributed,MODULE,... with the modules that take long",
                why=f"waiting workers had not all that the program imports ({seconds(taken_s)} s at this restart)",
                saves_s=taken_s - 0.1,
            )
        return
    known = [_known_imports(each) for each in startup.attempts if each.attempt != attempt.attempt]
    if attempt.nodes == 1 and not attempt.uses_any("warm-process", "image", "setup"):
        restarted = [each for each in known if each is not None]
        rest_s = min(restarted, default=WARM_PROCESS_S)
        yield Advice(
            what="robust warm start",
            why="it keeps a process with torch imported, from which this user's jobs on this node start",
            saves_s=taken_s - max(rest_s, WARM_PROCESS_S) if restarted else min(taken_s, WARM_FILES_S) - WARM_PROCESS_S,
        )
    read_bytes = attempt.critical.read_bytes if attempt.critical is not None else -1
    in_memory = 0 <= read_bytes < LEAST_READ_BYTES
    if not in_memory and not attempt.uses_any("prefetch-env", "image", "setup", "warm-process"):
        imports = _phase(attempt, "imports")
        fastest_s = imports.median_s if imports is not None and imports.stragglers else WARM_FILES_S
        yield Advice(
            what="--prefetch-env",
            why="it reads ahead the files that earlier starts opened: imports took longer than from memory",
            saves_s=0.5 * (taken_s - max(fastest_s, WARM_FILES_S)),
        )


def _known_imports(attempt: AttemptStartup) -> float | None:
    """Return how long imports of waiting workers took, if an attempt was started from such."""
    promoted = attempt.how and all(how in ("promote", "fork") for how, _ in attempt.how)
    summary = _phase(attempt, "imports")
    if not promoted or summary is None:
        return None
    return summary.median_s


def _load(attempt: AttemptStartup, spent: Spent, _: Startup) -> Iterator[Advice]:
    """A checkpoint that is read by one stream, or from a slow node."""
    taken_s = spent.get("load", 0.0)
    loaders = attempt.critical.loaders if attempt.critical is not None else ()
    others = [each for each in loaders if each != "robust-run"]
    if others:
        yield Advice(
            what="robust ckpt convert, and read the checkpoint with RobustReader or robust ckpt mount",
            why=f"{' and '.join(others)} took {seconds(taken_s)} s; striped files are read in parallel and verified",
            saves_s=(1.0 - CKPT_PART) * taken_s,
        )


def _script(attempt: AttemptStartup, spent: Spent, _: Startup) -> Iterator[Advice]:
    """What a batch script does before robust-run."""
    taken_s = spent.get("script", 0.0)
    if taken_s >= INSTALLS_S and not attempt.uses_any("setup"):
        yield Advice(
            what="--setup COMMANDS in place of installing in the batch script",
            why=f"the script ran for {seconds(taken_s)} s before robust-run; a set-up is done once and then restored",
            saves_s=taken_s - RESTORED_S,
        )


def _snapshot(attempt: AttemptStartup, spent: Spent, _: Startup) -> Iterator[Advice]:
    """A set-up that was not there, or far away."""
    taken_s = spent.get("snapshot", 0.0)
    if "setup-built" in attempt.uses:
        taken_s += spent.get("image", 0.0)  # where the set-up is in an image, both are made in one
        yield Advice(
            what="nothing: the next start restores the set-up that this one built",
            why="its commands were run at this start; keep --setup-store where all nodes reach it",
            saves_s=taken_s - RESTORED_S,
        )
    elif taken_s > FAR_S:
        yield Advice(
            what="a --setup-store that is near, and --image-cache on a local disk",
            why=f"restoring the set-up took {seconds(taken_s)} s; from the node's own disk it is mounted at once",
            saves_s=taken_s - RESTORED_S,
        )


def _image(attempt: AttemptStartup, spent: Spent, _: Startup) -> Iterator[Advice]:
    """An image of which little was known."""
    taken_s = spent.get("image", 0.0)
    if taken_s > FAR_S and "setup-built" not in attempt.uses:
        yield Advice(
            what="robust image build, and --image-cache on a local disk",
            why=f"the image took {seconds(taken_s)} s to mount; of a built one only what a start reads is fetched first",
            saves_s=taken_s - RESTORED_S,
        )


def _stragglers(attempt: AttemptStartup, spent: Spent, _: Startup) -> Iterator[Advice]:
    """A node that all others wait for."""
    phases: tuple[Phase, ...] = ("agent", "image", "snapshot", "spawn", "imports", "load", "program")
    for phase in phases:
        summary = _phase(attempt, phase)
        if attempt.nodes < 2 or summary is None or not summary.stragglers or summary.stragglers[0].rank >= 0:
            continue
        slowest = summary.stragglers[0]
        if attempt.critical is None or attempt.critical.node != slowest.node:
            continue
        yield Advice(
            what=f"look at {plain(slowest.node)}; while the job runs, robust evict {plain(slowest.node)} leaves it out",
            why=f"{phase} took {seconds(slowest.seconds)} s there and {seconds(summary.median_s)} s elsewhere",
            saves_s=min(slowest.seconds, spent.get(phase, 0.0)) - summary.median_s,
        )


def _meet(attempt: AttemptStartup, _: Spent, __: Startup) -> Iterator[Advice]:
    """Nodes that are started one after the other."""
    summary = _phase(attempt, "meet")
    if summary is not None and attempt.critical is not None and attempt.critical.spans:
        late_s = attempt.critical.spans[0].began_s
        yield Advice(
            what="start robust-run on all nodes at once (srun, mpirun, pdsh)",
            why=f"the launcher on {plain(attempt.critical.node)} was started {seconds(late_s)} s after the first",
            saves_s=late_s - 0.5,
        )


RULES: tuple[Callable[[AttemptStartup, Spent, Startup], Iterator[Advice]], ...] = (
    _imports,
    _load,
    _script,
    _snapshot,
    _image,
    _stragglers,
    _meet,
)
