"""Incidents and jobs to draw pages of, written down shortly, and a browser that looks at them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from seen_ranks import GETS, REDUCES, process

from robust_run.report.pages.ettr import spans_of
from robust_run.report.pages.types import (
    Accepts,
    AttemptTimes,
    Drawn,
    Happened,
    IncidentCost,
    IncidentPage,
    JobPage,
    NodePlace,
)
from robust_run.report.types import Action, Evidence, Incident, Verdict
from robust_run.tracer.types import Group, Op, RankSight, RankTrace, Scene

#: When everything happens, seconds since the epoch.
BEGIN_S = 1_790_000_000.0

#: What a job may call its files, raise and print.
HOSTILE = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\x00\x1b[31m\u202egnp.exe </style></title>--><!--"
)

STUCK_S = 300.0

#: All that a controller may do.
ANYTHING = Accepts(
    check=True,
    check_all=True,
    evict=True,
    readmit=True,
    restart=True,
    update=True,
    rollback=True,
    code_log=True,
    join=True,
)
#: A page of a job that runs, of one that is over, and one that a browser renews.
RUNS = Drawn(at_s=BEGIN_S + 200.0, life="running", accepts=ANYTHING)
DONE = Drawn(at_s=BEGIN_S + 200.0)
RENEWED = Drawn(at_s=BEGIN_S + 300.0, life="running", served=True)


def places(nodes: int, nproc: int) -> tuple[NodePlace, ...]:
    return tuple(NodePlace(node=f"gpu-{n:04d}", first_rank=n * nproc, nproc=nproc) for n in range(nodes))


def attempt(number: int, ordered_s: float, *, nodes: int = 2, nproc: int = 4, **more: Any) -> AttemptTimes:
    """An attempt, its times in seconds since `BEGIN_S`."""
    times = {name: BEGIN_S + value for name, value in more.items() if name.endswith("_s")}
    rest = {name: value for name, value in more.items() if not name.endswith("_s")}
    return AttemptTimes(
        number=number,
        places=places(nodes, nproc),
        world_size=nodes * nproc,
        ordered_s=BEGIN_S + ordered_s,
        **{**times, **rest},  # type: ignore[arg-type]
    )


def incident(number: int = 1, of_attempt: int = 0, onset_s: float = 100.0, **more: Any) -> Incident:
    """A hang of rank 5, its times in seconds since `BEGIN_S`."""
    verdict = Verdict(
        **{  # type: ignore[arg-type]
            "kind": "hang",
            "ranks": (5,),
            "nodes": ("gpu-0001",),
            "group": "group tp_2",
            "confidence": "high",
            "rule": "never_joined",
            "sentence": "rank 5 never joined all_reduce #60 of group tp_2 (7 ranks have been waiting for 4.6 s); "
            "it is in data.py:88 batch",
            **more.pop("verdict", {}),
        }
    )
    times = {"detected_s": 4.0, "decided_s": 5.0, "resumed_s": 12.0} | {
        name: more.pop(name) for name in tuple(more) if name.endswith("_s")
    }
    return Incident(
        **{  # type: ignore[arg-type]
            "id": number,
            "attempt": of_attempt,
            "symptom": "hang",
            "onset_s": BEGIN_S + onset_s,
            **{name: None if value is None else BEGIN_S + onset_s + value for name, value in times.items()},
            "verdict": verdict,
            "action": Action(name="relaunch", nodes=("gpu-0001",), reason="it had made progress"),
            "evidence": (
                Evidence(what="what was seen", rank=5, text="rank 4 waits for 5\nrank 5:\n  data.py:88 batch"),
            ),
            **more,
        }
    )


def scene(world: int = 8, nproc: int = 4, culprit: int = 5) -> Scene:
    """All ranks wait for one that fetches data: its tensor-parallel peer directly, the others through their groups of data."""
    tps = [Group(name=f"t{i}", desc=f"tp_{i}", ranks=(2 * i, 2 * i + 1)) for i in range(world // 2)]
    dps = [Group(name=f"d{i}", desc=f"dp_{i}", ranks=tuple(range(i, world, 2))) for i in range(2)]
    sights = []
    for rank in range(world):
        own = (tps[rank // 2], dps[rank % 2])
        first = rank // 2 == culprit // 2
        call = Op(
            group=own[0 if first else 1].name,
            op="all_reduce",
            seq=60,
            state="waiting",
            at_s=95.0,
            numel=64,
            dtype="float32",
        )
        done = msgspec.structs.replace(call, seq=59, state="done", at_s=94.0, done_at_s=94.1)
        trace = RankTrace(
            rank=rank,
            world_size=world,
            pid=100 + rank,
            steps=59,
            last_at_s=95.0,
            blocked_s=1.0,
            ops=(done,) if rank == culprit else (done, call),
            groups=own,
        )
        looks = process(GETS if rank == culprit else REDUCES, pid=100 + rank)
        sights.append(RankSight(rank=rank, node=f"gpu-{rank // nproc:04d}", trace=trace, processes=(looks,)))
    return Scene(at_s=100.0, attempt=0, world_size=world, ranks=tuple(sights))


def incident_page(nodes: int = 2, nproc: int = 4, **more: Any) -> IncidentPage:
    """The page of a hang, resumed 12 s after its onset."""
    struck = attempt(
        0, 0.0, nodes=nodes, nproc=nproc, started_s=1.0, first_step_s=10.0, verdict_s=104.9, ended_s=106.0, steps=59
    )
    return IncidentPage(
        **{  # type: ignore[arg-type]
            "run_id": "llama",
            "run": "/runs/llama",
            "script": "train.py",
            "incident": incident(),
            "scene": scene(nodes * nproc, nproc),
            "attempt": struck,
            "following": attempt(1, 106.5, nodes=nodes, nproc=nproc, started_s=107.0, first_step_s=112.0),
            "lost": IncidentCost(seconds=12.0, ranks=nodes * nproc, is_over=True, steps=40, redone_s=60.0, step_s=1.5),
            "drawn": DONE,
            **more,
        }
    )


def job_page(nodes: int = 2, nproc: int = 4, **more: Any) -> JobPage:
    """The page of a job that hung once and goes on."""
    attempts = (
        attempt(
            0, 0.5, nodes=nodes, nproc=nproc, started_s=1.0, first_step_s=10.0, verdict_s=104.9, ended_s=106.0, steps=59
        ),
        attempt(1, 106.5, nodes=nodes, nproc=nproc, started_s=107.0, first_step_s=112.0),
    )
    happened = incident()
    return JobPage(
        **{  # type: ignore[arg-type]
            "run_id": "llama",
            "run": "/runs/llama",
            "script": "train.py",
            "command": "python train.py",
            "started_s": BEGIN_S,
            "drawn": RENEWED,
            "known_s": BEGIN_S + 300.0,
            "phase": "running",
            "world_size": nodes * nproc,
            "nodes_active": nodes,
            "attempts": attempts,
            "incidents": (Happened(incident=happened, lost=IncidentCost(seconds=12.0, ranks=8, is_over=True)),),
            "spans": spans_of(attempts, (happened,), BEGIN_S, BEGIN_S + 300.0),
            **more,
        }
    )


# --- what must hold of every page ---------------------------------------------------------------------------------------

_TAGS = frozenset(
    "a article b body br button code dd defs details div dl dt footer g h1 h2 h3 head header html i input label li link main "
    "marker meta nav ol p path pre rect script section small span strong style summary svg table tbody td text th thead title "
    "tr ul wbr caption figure figcaption".split()
)


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def assert_harmless(html: str) -> None:
    """Fail if a page has an element, an attribute or a character that cannot be ours."""
    parser = _Elements()
    parser.feed(html)
    parser.close()
    scripts = [attributes for tag, attributes in parser.found if tag == "script"]
    assert sum("type" not in attributes for attributes in scripts) == 1, "one script is ours"
    for tag, attributes in parser.found:
        assert tag in _TAGS, f"<{tag}> is none of ours"
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert "src" not in attributes, "nothing is fetched"
        href = attributes.get("href") or ""
        assert re.fullmatch(r"(|#[a-z-]+|(\.\./)?[a-z0-9/._-]+)", href), href
    for forbidden in ("\x00", "\x1b", "\u202e"):
        assert forbidden not in html


# --- a browser -------------------------------------------------------------------------------------------------------

_LOOK = """<!doctype html><meta charset=utf-8><title>look</title><body style=margin:0><pre id=said></pre><script>
const sleep = ms => new Promise(r => setTimeout(r, ms));
async function look(path, width) {
  const frame = document.createElement('iframe'), bad = [];
  Object.assign(frame, {src: path, width: width, height: 800, style: 'border:0'});
  document.body.prepend(frame);
  await new Promise(r => frame.addEventListener('load', r));
  const d = frame.contentDocument, w = frame.contentWindow;
  d.addEventListener('securitypolicyviolation', e => bad.push(e.violatedDirective + ' ' + e.blockedURI));
  w.addEventListener('error', e => bad.push(String(e.message)));
  const key = (e, k) => e.dispatchEvent(new w.KeyboardEvent('keydown', {key: k, bubbles: true, cancelable: true}));
  let found;
  try { found = await (async () => { %(script)s })(); } catch (e) { bad.push(String(e)); }
  const seen = {
    width: d.documentElement.scrollWidth, shown: d.documentElement.clientWidth, bad: bad, found: found,
    wide: Array.from(d.querySelectorAll('body *')).filter(e => e.getBoundingClientRect().right > d.documentElement.clientWidth + 1
      && !e.closest('.scroll,.heat,.graph,.skip,pre')).slice(0, 5).map(e => e.tagName + '.' + e.className)};
  frame.remove();
  return seen;
}
(async () => {
  const all = [];
  for (const [path, width] of %(looks)s) all.push(await look(path, width));
  document.getElementById('said').textContent = JSON.stringify(all);
  document.title = 'looked';
})();
</script>"""


def need_chromium() -> str:
    """Return the browser, or skip."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        pytest.skip("no chromium is installed: pages are not looked at")
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder to this machine; return its address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def look_at(folder: Path, name: str, script: str = "return null", width: int = 390) -> dict[str, Any]:
    """Open a page of a folder in a window of this width, run a script beside it, and return what was seen.

    `script` is the body of an async function over `d` (the page's document), `w`, `sleep(ms)` and `key(element, name)`.
    """
    return look_at_all(folder, [(name, width)], script)[0]


def look_at_all(folder: Path, looks: list[tuple[str, int]], script: str = "return null") -> list[dict[str, Any]]:
    """The same, of pages and widths one after the other in one browser, which takes a second of a CPU to start.

    What its console says is that of all of them: each line names its page.
    """
    chromium = need_chromium()
    (folder / "look.html").write_text(_LOOK % {"looks": json.dumps(looks), "script": script})
    with served(folder) as address, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        argv = [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
        ]
        argv += ["--virtual-time-budget=20000", "--dump-dom", f"{address}/look.html"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=STUCK_S, check=False)
    said = re.search(r"<pre id=\"said\">(.*?)</pre>", done.stdout, re.DOTALL)
    assert said and said.group(1), f"the page did not load: {done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    all_seen: list[dict[str, Any]] = json.loads(unescape(said.group(1)))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return [{**seen, "console": console} for seen in all_seen]


def assert_they_draw_without_errors_and_fit(folder: Path, pages: dict[str, str]) -> None:
    """Look at each of these pages, by name, on a phone and on a screen."""
    for name, html in pages.items():
        (folder / f"{name}.html").write_text(html)
    looks = [(f"{name}.html", width) for name in pages for width in (390, 1280)]
    for (name, width), seen in zip(looks, look_at_all(folder, looks), strict=True):
        assert not seen["bad"], f"{name} at {width}: no error, and nothing that its own policy forbids: {seen['bad']}"
        assert not seen["console"], seen["console"]
        assert width - 20 <= seen["shown"] <= width, "each has a window of its own, with or without a scroll bar"
        assert seen["width"] <= width, f"{name} is wider than the window of {width}: {seen['wide']}"
