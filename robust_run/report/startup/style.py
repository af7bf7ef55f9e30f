"""How the waterfall looks: the class of each phase, and the style sheet that goes with it."""

from __future__ import annotations

from robust_run.report.startup.types import PHASES, Phase

CLASSES: dict[Phase, str] = {phase: f"rr-wf-{phase.replace('_', '-')}" for phase in PHASES}

_FILLS = {
    "--wf-agent": ("--series-8", "#7d8794", "#8b95a3"),
    "--wf-image": ("--series-1", "#2a78d6", "#5b9ef0"),
    "--wf-snapshot": ("--series-2", "#1b9e6e", "#35c48f"),
    "--wf-imports": ("--series-3", "#dd9a00", "#f0b429"),
    "--wf-init": ("--series-4", "#5a4bc0", "#9a8cf5"),
    "--wf-load": ("--series-5", "#c2417c", "#ea76a8"),
    "--wf-program": ("--series-6", "#4d9fb5", "#64bdd4"),
    "--wf-step": ("--series-7", "#a7c957", "#8fb13f"),
    "--wf-ink": ("--ink", "#16191d", "#e7eaee"),
    "--wf-muted": ("--muted", "#5d6670", "#9aa4b0"),
    "--wf-line": ("--line", "#dfe3e8", "#343b44"),
    "--wf-bad": ("--bad", "#b3261e", "#ff8a80"),
}
"""Our properties: the page's own, and what there is without one, light and dark."""


def _properties(index: int) -> str:
    return "".join(f"{name}:var({values[0]},{values[index]});" for name, values in _FILLS.items())


_RULES = """
.rr-wf{color:var(--wf-ink);font-size:.94rem}section.rr-wf{margin:0;padding:0;border:0}
.rr-wf p{margin:.4rem 0;max-width:none}
.rr-wf-say{font-weight:600}
.rr-wf-note,.rr-wf-dim,.rr-wf small{color:var(--wf-muted)}
.rr-wf ul{list-style:none;margin:0;padding:0}
.rr-wf-key{display:flex;flex-wrap:wrap;align-items:baseline;gap:.15rem 1rem;margin:.5rem 0!important}
.rr-wf svg.rr-wf-swatch{display:inline-block;max-width:none;width:.75em;height:.75em;margin-right:.4em;vertical-align:-.03em}
.rr-wf-row{display:grid;grid-template-columns:minmax(6rem,13rem) 1fr 5.2rem;gap:0 .7rem;align-items:center;padding:1px 0}
.rr-wf-row>svg{width:100%;height:1.25rem;display:block}
.rr-wf-who{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;text-align:right}
.rr-wf-end{font-variant-numeric:tabular-nums}
.rr-wf-last .rr-wf-who,.rr-wf-last .rr-wf-end{font-weight:600}
.rr-wf-slow{grid-column:2/4;color:var(--wf-bad);font-size:.85em}
.rr-wf-grid{stroke:var(--wf-line);fill:none;vector-effect:non-scaling-stroke}
.rr-wf-axis{color:var(--wf-muted);font-size:.85em}
.rr-wf-axis>div{position:relative;height:1.4em}
.rr-wf-axis>div>span{position:absolute;transform:translateX(-50%)}
.rr-wf rect{stroke:none}
.rr-wf-agent,.rr-wf-script,.rr-wf-queue{fill:var(--wf-agent)}
.rr-wf-spawn{fill:var(--wf-agent);opacity:.6}
.rr-wf-meet{fill:var(--wf-line)}
.rr-wf-image{fill:var(--wf-image)}
.rr-wf-snapshot{fill:var(--wf-snapshot)}
.rr-wf-imports{fill:var(--wf-imports)}
.rr-wf-init{fill:var(--wf-init)}
.rr-wf-load{fill:var(--wf-load)}
.rr-wf-program{fill:var(--wf-program)}
.rr-wf-first-step{fill:var(--wf-step);opacity:.45}
.rr-wf details{margin:.8rem 0}
.rr-wf summary{cursor:pointer;font-weight:600}
.rr-wf-scroll{overflow-x:auto}
.rr-wf table{border-collapse:collapse;width:auto;font-variant-numeric:tabular-nums;margin-top:.3rem}
.rr-wf caption{text-align:left;color:var(--wf-muted)}
.rr-wf th,.rr-wf td{padding:.22rem .8rem .22rem 0;text-align:right;border-bottom:1px solid var(--wf-line);vertical-align:top}
.rr-wf td,.rr-wf th{font-size:inherit;color:inherit;overflow-wrap:normal}
.rr-wf th:first-child,.rr-wf td:last-child{text-align:left}
.rr-wf th small{display:block;font-weight:400}
.rr-wf .rr-wf-bad{color:var(--wf-bad)}
.rr-wf h3{font-size:1rem;margin:.8rem 0 .2rem}
.rr-wf-advice{margin:0;padding-left:1.3rem}
.rr-wf-advice span{color:var(--wf-muted)}
@media(max-width:600px){
.rr-wf-row{grid-template-columns:1fr auto;padding:.25rem 0}
.rr-wf-who{text-align:left}.rr-wf-end{grid-column:2;grid-row:1}
.rr-wf-row>svg,.rr-wf-slow,.rr-wf-axis>div{grid-column:1/3}
.rr-wf-axis .rr-wf-who{display:none}
.rr-wf th,.rr-wf td{padding-right:.5rem;white-space:nowrap}.rr-wf th small{display:none}
}
@media print{.rr-wf-row,.rr-wf tr{break-inside:avoid}.rr-wf details>*{display:revert}}
"""

STYLE = (
    f".rr-wf{{{_properties(1)}}}"
    f"@media(prefers-color-scheme:dark){{.rr-wf{{{_properties(2)}}}}}"
    f"@media print{{.rr-wf{{{_properties(1)}}}}}" + "".join(_RULES.splitlines())
)
