"""How pages look: one style sheet, light and dark, for screens from 390 pixels on and for paper.

Colour is kept for states: red is at fault, amber may be, blue waits, green is well. Everything else is ink on paper. Fragments
of other modules (the start-up waterfall) use the custom properties named here.
"""

from __future__ import annotations

_LIGHT = """--paper:#fff;--surface:#f6f7f8;--ink:#1a1f24;--muted:#5b6570;--line:#dde2e7;--link:#0b57a8;
--bad:#c0261c;--bad-wash:#fcefed;--warn:#a05c00;--warn-wash:#fdf4e3;--good:#1a7742;--good-wash:#ecf6ef;
--wait:#86a6c8;--calm:#d3d9df;--none:#eceff2;--on-state:#fff;
--series-1:#2f6fae;--series-2:#c26a1b;--series-3:#3d8a5f;--series-4:#8b5fb0;--series-5:#5d8fa8;--series-6:#a8863c;
--series-7:#b0566e;--series-8:#7a828b;"""
_DARK = """--paper:#11151a;--surface:#191f26;--ink:#e4e9ee;--muted:#98a4b0;--line:#2d3640;--link:#7db8f2;
--bad:#ff7a6d;--bad-wash:#32191a;--warn:#e5a642;--warn-wash:#2d2415;--good:#5ec98a;--good-wash:#15281d;
--wait:#456689;--calm:#46525e;--none:#242c34;--on-state:#11151a;
--series-1:#6aa9e4;--series-2:#e59a52;--series-3:#67b98c;--series-4:#b493d6;--series-5:#86b7cf;--series-6:#cdb069;
--series-7:#dc8aa0;--series-8:#a3adb7;"""

_BASE = """
*{box-sizing:border-box}
html{color-scheme:light dark;-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
font-variant-numeric:tabular-nums}
main,.top,footer{max-width:66rem;margin:0 auto;padding:0 1.5rem}
a{color:var(--link);text-underline-offset:.15em}a code{text-underline-offset:.3em;text-decoration:underline}a:has(>code){text-decoration:none}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-99rem}.skip:focus{left:1rem;top:.5rem;background:var(--paper);padding:.3rem .6rem}
.top{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;padding-top:1rem;padding-bottom:1rem;color:var(--muted);font-size:.875rem}
.top .grow{flex:1;min-width:0;overflow-wrap:anywhere}
h1{font-size:1.875rem;line-height:1.28;font-weight:620;letter-spacing:-.012em;margin:.35rem 0 1.5rem;max-width:52rem;
overflow-wrap:anywhere;text-wrap:pretty}
h1 .rest{display:block;font-size:1.0625rem;line-height:1.5;font-weight:400;letter-spacing:0;color:var(--muted);margin-top:.5rem}
h2{font-size:1.1875rem;line-height:1.3;font-weight:620;margin:0 0 .75rem}
h3{font-size:.9375rem;font-weight:620;margin:1.25rem 0 .4rem}
p{margin:.25rem 0 .75rem;max-width:46rem}
section{margin:2.5rem 0 0;padding-top:1.5rem;border-top:1px solid var(--line);overflow-wrap:anywhere}
.note,.dim{color:var(--muted)}.note{font-size:.9rem;margin-top:-.4rem;max-width:46rem}
.small{font-size:.875rem}.nowrap{white-space:nowrap}
code,pre{font-family:ui-monospace,SFMono-Regular,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.84em}
pre{margin:.5rem 0 1rem;padding:.8rem 1rem;background:var(--surface);border-radius:6px;overflow:auto;max-height:28rem;
line-height:1.5;white-space:pre-wrap;overflow-wrap:anywhere}
.cmd{display:inline-block;padding:.12rem .5rem;background:var(--surface);border:1px solid var(--line);border-radius:5px;
user-select:all;overflow-wrap:anywhere}
.copy{margin-left:.4rem;padding:.1rem .5rem;border:1px solid var(--line);border-radius:5px;background:none;color:var(--muted);
font:inherit;font-size:.8125rem;cursor:pointer}.copy:hover{color:var(--ink);border-color:var(--muted)}
.find{margin:1.25rem 0 0}.find input{font:inherit;font-size:.9rem;padding:.15rem .5rem;border:1px solid var(--line);border-radius:5px;background:var(--paper);
color:var(--ink);max-width:100%}
@media(scripting:none){.copy,.find{display:none}}
footer{color:var(--muted);font-size:.8125rem;padding-top:3rem;padding-bottom:2.5rem;overflow-wrap:anywhere}
.kicker{display:flex;flex-wrap:wrap;align-items:center;gap:.3rem .8rem;font-size:.9rem;color:var(--muted);margin-top:.75rem}
.kind{font-weight:620;color:var(--bad)}.kind.warn{color:var(--warn)}.kind.good{color:var(--good)}.kind.calm{color:var(--ink)}
.kind::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;background:currentColor;
margin-right:.45em}
.bad{color:var(--bad)}.warn{color:var(--warn)}.good{color:var(--good)}
.answers{display:grid;grid-template-columns:repeat(3,1fr);border:1px solid var(--line);border-radius:10px;overflow:hidden}
.answers>div{padding:1rem 1.25rem 1.1rem;border-left:1px solid var(--line);min-width:0;overflow-wrap:anywhere}
.answers>div:first-child{border-left:0;background:var(--bad-wash)}
.answers.soft>div:first-child{background:var(--warn-wash)}.answers.plain>div:first-child{background:none}
dt,.label{font-size:.8125rem;color:var(--muted);margin-bottom:.15rem}
.answers strong{display:block;font-size:1.3125rem;line-height:1.3;font-weight:620}
.answers .first strong{color:var(--bad)}.answers.soft .first strong{color:var(--warn)}
.answers.plain .first strong{color:var(--ink)}
.answers small{display:block;font-size:.9rem;line-height:1.45;color:var(--muted);margin-top:.25rem}
.pair{display:grid;grid-template-columns:3fr 2fr;gap:0 3rem}
ol.steps{margin:.25rem 0 0;padding-left:1.35rem}ol.steps li{margin-bottom:.7rem;padding-left:.2rem}
ol.steps li::marker{color:var(--muted)}ol.steps .cmd{margin-top:.25rem}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:.35rem 1.25rem;margin:0}
dl.facts dt{margin:0;font-size:.9rem}dl.facts dd{margin:0;min-width:0;overflow-wrap:anywhere}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:1.25rem 1.5rem;margin:0 0 .5rem}
.figures strong{display:block;font-size:1.625rem;line-height:1.2;font-weight:600;letter-spacing:-.01em}
.figures small{color:var(--muted);display:block;font-size:.84rem;line-height:1.4}
.scroll{overflow-x:auto}
table{overflow-wrap:break-word;border-collapse:collapse;width:100%;font-size:.9375rem}
th{font-weight:500;text-align:left;color:var(--muted);font-size:.8125rem;vertical-align:bottom}
th,td{padding:.45rem 1rem .45rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td:last-child,th:last-child{padding-right:0}
td{overflow-wrap:anywhere}
.num{text-align:right;white-space:nowrap}
details{margin:.5rem 0}summary{cursor:pointer;color:var(--link);border-radius:4px}
summary::marker{color:var(--muted)}
svg{display:block;max-width:100%}svg text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
svg .dim,svg text.dim{fill:var(--muted)}
"""

_COURSE = """
.course{margin:.25rem 0 0;padding:0;list-style:none}
.course li{display:grid;grid-template-columns:15rem 5.5rem 1fr;gap:0 1rem;align-items:center;padding:.4rem 0;
border-bottom:1px solid var(--line)}
.course li b{font-weight:560;display:block}.course li small{color:var(--muted);font-size:.84rem;display:block;line-height:1.35}
.course .num{font-weight:560}
.course svg{width:100%;height:1rem}.track{fill:var(--none)}.bar{fill:var(--series-8)}
.bar.lead{fill:var(--series-1)}
.moments{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;padding:0;margin:0 0 .6rem;list-style:none;font-size:.9rem}
.moments b{font-weight:560}
.split{width:100%;height:1.5rem;border-radius:4px;overflow:hidden}
.k-productive{fill:var(--series-3)}.k-first_start{fill:var(--series-5)}.k-starting{fill:var(--series-1)}
.k-redone{fill:var(--series-7)}.k-standstill{fill:var(--bad)}.k-unnoticed{fill:var(--series-2)}.k-deciding{fill:var(--series-6)}.k-ending{fill:var(--series-8)}
.k-checking{fill:var(--wait)}.k-waiting{fill:var(--series-4)}.k-unused{fill:var(--calm)}
.swatch{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.5rem;vertical-align:-.05rem}
"""

_RANKS = """
.legend{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;padding:0;margin:0 0 .9rem;list-style:none;font-size:.9rem}
.tabs{display:flex;flex-wrap:wrap;gap:.4rem;margin:0 0 .9rem}
.tabs label{padding:.2rem .8rem;border:1px solid var(--line);border-radius:99px;font-size:.875rem;cursor:pointer}
.pick{position:absolute;opacity:0;pointer-events:none}
.pick:focus-visible+*{outline:2px solid var(--link)}
.view{display:none}
.row{display:grid;grid-template-columns:11rem 1fr;gap:.25rem 1rem;padding:.25rem 0;align-items:center}
.row>span{font-size:.875rem;color:var(--muted);overflow-wrap:anywhere;line-height:1.3}
.row.hit>span{color:var(--ink);font-weight:560}
.cells{display:flex;flex-wrap:wrap;gap:3px}
.cell{appearance:none;border:0;margin:0;padding:0 .2rem;min-width:2.4rem;height:2.1rem;border-radius:5px;background:var(--none);
color:var(--ink);font:560 .8125rem/1 system-ui,sans-serif;cursor:pointer;font-variant-numeric:tabular-nums}
.dense .cell{min-width:1.15rem;width:1.15rem;height:1.15rem;border-radius:3px;padding:0;font-size:0}
.dense .row,.mass .row{grid-template-columns:12rem 1fr;padding:.1rem 0}
.mass .cell{min-width:.85rem;width:.85rem;height:.85rem;border-radius:2px;padding:0;font-size:0}.mass .cells{gap:2px}
.s-culprit{background:var(--bad);color:var(--on-state)}.s-suspect,.s-shown{background:var(--warn);color:var(--on-state)}
.s-failed{background:var(--paper);box-shadow:inset 0 0 0 2px var(--bad);color:var(--bad)}
.s-waiting{background:var(--wait);color:var(--ink)}
.s-working{background:var(--calm)}.s-ended{background:var(--none);color:var(--muted)}
.s-unseen{background:var(--paper);box-shadow:inset 0 0 0 1px var(--calm);color:var(--muted)}
.cell[aria-current]{outline:2px solid var(--ink);outline-offset:1px}
.panel{margin-top:.9rem;padding:.7rem 1rem;border:1px solid var(--line);border-radius:8px;min-height:2.9rem;font-size:.9375rem}
.panel .cells{margin-top:.5rem}.panel .cell{min-width:2.4rem;width:auto;height:1.9rem;font-size:.8125rem;border-radius:5px}
.panel h3{margin:.2rem 0 .2rem}
"""

_EVIDENCE = """
.tree,.tree ul{list-style:none;margin:0;padding:0}.tree ul{margin-left:.55rem;padding-left:1rem;border-left:1px solid var(--line)}
.tree li{padding:.1rem 0}.tree ul>li+li{margin-top:.5rem}.tree .frame{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:.84em;
line-height:1.55;display:block}
.tree .user{font-weight:620}.tree .who{display:inline-block;font-size:.84rem;border-radius:4px;padding:0 .45rem;margin:.15rem 0;
background:var(--none)}
.tree .who.s-culprit{background:var(--bad);color:var(--on-state)}.tree .who.s-suspect{background:var(--warn);color:var(--on-state)}
.tree .who.s-waiting{background:var(--wait);color:var(--ink)}
.tree .plumbing{color:var(--muted)}
.chains{list-style:none;margin:0 0 1rem;padding:0;overflow-wrap:anywhere}.chains li{margin:0 0 .6rem}
.graph{overflow-x:auto}.graph svg{max-width:none}
.graph .box{fill:var(--paper);stroke:var(--line);stroke-width:1.5}.graph .box.s-waiting{stroke:var(--wait);fill:var(--paper)}
.graph .box.s-culprit{fill:var(--bad-wash);stroke:var(--bad);stroke-width:2}
.graph .box.s-suspect{fill:var(--warn-wash);stroke:var(--warn);stroke-width:2}
.graph .strong{font-weight:620}.graph .s-culprit-ink{fill:var(--bad)}.graph .s-suspect-ink{fill:var(--warn)}
.graph .edge{fill:none;stroke:var(--muted);stroke-width:1.5}.graph .tip{fill:var(--muted)}
.heat{overflow-x:auto}.heat svg{max-width:none}.chart svg{width:100%;height:auto}.chart.narrow{display:none}

.chart+.legend{margin-top:.9rem}.grid{stroke:var(--line)}.cum{fill:none;stroke:var(--ink);stroke-width:2}
.win{fill:none;stroke:var(--series-1);stroke-width:1.5}
.mark{stroke:var(--bad);stroke-width:1.5}
.series{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:1.5rem}.series figure{margin:0;min-width:0}
.series strong{font-size:1.3rem;font-weight:600}.series small{font-size:.84rem;margin-left:.5rem}.series small.dim{margin:0}
.series svg{width:100%;height:5rem}
.multiples{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.9rem 1.5rem;margin:.75rem 0}
.multiples figure{margin:0;min-width:0}.multiples svg{width:100%;height:auto}.multiples figcaption{font-size:.8125rem;line-height:1.35;min-height:2.2rem}
.multiples strong{font-weight:600}.multiples .out strong{color:var(--bad)}.multiples .line{fill:none;stroke:var(--bad);stroke-width:2}
.multiples .middle{fill:none;stroke:var(--muted);stroke-width:1.25}.multiples .since{stroke:var(--bad);stroke-dasharray:2 3;fill:none}
.usage figure{margin:0 0 1.25rem}.usage strong{font-size:1.15rem;font-weight:600;margin:0 .35rem}.usage .label{margin:0}
.node{fill:none;stroke-width:2}.band{fill:var(--wait);fill-opacity:.35}.start{stroke:var(--muted);stroke-dasharray:2 3}
.odd{fill:var(--ink);stroke:var(--paper);stroke-width:1.5}svg text.tiny{font-size:11px}
.n1{stroke:var(--series-1)}.n2{stroke:var(--series-2)}.n3{stroke:var(--series-3)}.n4{stroke:var(--series-4)}
.n5{stroke:var(--series-5)}.n6{stroke:var(--series-6)}.n7{stroke:var(--series-7)}.n8{stroke:var(--series-8)}
.strip{width:9.5rem;height:.8rem;margin:.3rem 0 .2rem;border-radius:3px;overflow:hidden;background:var(--none)}
.lives h3{margin:.9rem 0 .2rem}.lives .row{padding:.15rem 0}.life{width:100%;height:1.1rem;border-radius:3px;overflow:hidden;background:var(--none)}
.waits-at-queues{fill:var(--warn)}.ends{display:flex;justify-content:space-between}
.a-bad{fill:var(--bad)}.a-good{fill:var(--good)}.a-calm{fill:var(--wait)}.runs td:nth-child(1),.runs td:nth-child(6){min-width:9.5rem}.runs td:nth-child(7){min-width:12rem}.runs td .small{font-weight:400}
.need{font-weight:600}.need::before{content:"";display:inline-block;width:.6em;height:.6em;border-radius:50%;background:currentColor;margin-right:.45em}
.live-dot{display:inline-block;width:.55rem;height:.55rem;border-radius:50%;background:var(--good);margin-right:.4rem}
.stale .usage figure{margin:0 0 1.25rem}.usage strong{font-size:1.15rem;font-weight:600;margin:0 .35rem}.usage .label{margin:0}
.node{fill:none;stroke-width:2}.band{fill:var(--wait);fill-opacity:.35}.start{stroke:var(--muted);stroke-dasharray:2 3}
.odd{fill:var(--ink);stroke:var(--paper);stroke-width:1.5}svg text.tiny{font-size:11px}
.n1{stroke:var(--series-1)}.n2{stroke:var(--series-2)}.n3{stroke:var(--series-3)}.n4{stroke:var(--series-4)}
.n5{stroke:var(--series-5)}.n6{stroke:var(--series-6)}.n7{stroke:var(--series-7)}.n8{stroke:var(--series-8)}
.live-dot{background:var(--warn)}
"""

_PHONE = """
@media(max-width:44rem){
main,.top,footer{padding-left:1rem;padding-right:1rem}
h1{font-size:1.4375rem}
.answers,.pair{grid-template-columns:1fr}.pair{gap:1.75rem 0}
.answers>div{border-left:0;border-top:1px solid var(--line);padding:.8rem 1rem}.answers>div:first-child{border-top:0}
section{margin-top:1.75rem;padding-top:1.25rem}
.course li{grid-template-columns:1fr auto;row-gap:.3rem}.course li svg{grid-column:1/-1}
.row,.dense .row,.mass .row{grid-template-columns:1fr}
table.stack thead{display:none}table.stack,table.stack tbody,table.stack tr,table.stack td{display:block;width:100%}
table.stack tr{border-bottom:1px solid var(--line);padding:.5rem 0}
table.stack td{border:0;padding:.1rem 0 .1rem 7rem;text-align:left;white-space:normal;position:relative}
table.stack td::before{content:attr(data-h);position:absolute;left:0;top:.2rem;color:var(--muted);font-size:.8125rem}
table.stack td[data-h=""]{padding-left:0}table.stack td:first-child{font-weight:560}
.chart.wide{display:none}.chart.narrow{display:block}.mass .row{padding:.25rem 0}
table.stack td:empty{display:none}
}
"""

_PRINT = """
@media print{
@page{margin:14mm}
:root{%s}
body{font-size:10.5pt}main,.top,footer{max-width:none;padding:0}
h1{font-size:18pt}section{margin-top:14pt;padding-top:10pt;break-inside:auto}
h2,h3{break-after:avoid}.answers,tr,.course li,.row{break-inside:avoid}
pre{max-height:none;white-space:pre-wrap}.scroll,.graph,.heat{overflow:visible}
.tabs,.skip,.screen{display:none}.panel:empty{display:none}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
a{color:inherit}
}
"""

CSS = (
    f":root{{{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    + _BASE
    + _COURSE
    + _RANKS
    + _EVIDENCE
    + _PHONE
    + _PRINT % _LIGHT
)
"""All of it."""
