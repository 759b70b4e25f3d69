"""How a study's page looks: light and dark, on a screen, a phone and paper."""

from __future__ import annotations

_LIGHT = ("#0b6fa4", "#c2410c", "#15803d", "#7c3aed", "#b91c5c", "#8a6d00", "#0f766e", "#4d4d4d", "#6b7280", "#94632b")
_DARK = ("#5ab4e6", "#fb923c", "#5fd38a", "#b79cff", "#f589b4", "#e0c04c", "#4fd1c5", "#c9c9c9", "#9aa3b2", "#d3a26a")


def _palette(colours: tuple[str, ...]) -> str:
    return "".join(f"--c{place}: {colour};" for place, colour in enumerate(colours))


STYLE = (
    f"""
:root {{ color-scheme: light dark; --paper: #fdfdfb; --ink: #1d1f21; --faint: #6a6e73; --rule: #dcdcd6;
  --card: #ffffff; --good: #15803d; --bad: #b91c1c; --open: #92600a; {_palette(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --paper: #141618; --ink: #e4e4e2; --faint: #9aa0a6; --rule: #34383c;
  --card: #1c1f22; --good: #5fd38a; --bad: #ff8a8a; --open: #e7b75a; {_palette(_DARK)} }} }}
"""
    """
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; max-width: 76rem; padding: 1rem clamp(.8rem, 3vw, 2rem) 4rem }
h1 { font-size: clamp(1.4rem, 4vw, 2rem); line-height: 1.25; text-wrap: balance }
h2 { margin-top: 2.6rem; border-bottom: 1px solid var(--rule); padding-bottom: .2rem }
h3 { margin: 1.4rem 0 .4rem } a { color: var(--c0) }
.verdict { background: var(--card); border: 1px solid var(--rule); border-left: 5px solid var(--open);
  border-radius: 6px; padding: .6rem .9rem; margin: .6rem 0 }
.verdict b { text-transform: uppercase; letter-spacing: .04em; font-size: .85em; margin-right: .5em;
  color: var(--open) }
.verdict.confirmed { border-left-color: var(--good) } .verdict.confirmed b { color: var(--good) }
.verdict.refuted { border-left-color: var(--bad) } .verdict.refuted b { color: var(--bad) }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1rem; font-size: .9rem; margin-top: 1rem }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 6px; padding: .6rem }
figcaption { font-weight: 600; font-size: .95rem }
figure > svg { width: 100%; height: auto; display: block; overflow: visible }
svg text { fill: var(--ink); font-size: 13px } .grid { stroke: var(--rule); stroke-width: 1 }
.line { fill: none; stroke-width: 2 } .dashed { stroke-dasharray: 6 4 } .whisker { stroke-width: 1.2; opacity: .55 }
.front { fill: none; stroke: var(--faint); stroke-width: 1.5; stroke-dasharray: 3 3 }
.dot { stroke: var(--card); stroke-width: 1 } .dot:hover, .dot:focus { stroke: var(--ink); outline: none }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; padding: 0; font-size: .9rem }
.legend svg { vertical-align: middle; margin-right: .35rem }
.wide { overflow-x: auto; margin: .4rem 0 1rem; border: 1px solid var(--rule); border-radius: 6px }
table { border-collapse: collapse; font-size: .86rem; width: 100%; background: var(--card) }
th, td { padding: .28rem .6rem; text-align: left; border-bottom: 1px solid var(--rule); white-space: nowrap }
td.long { white-space: normal; min-width: 14rem } th { position: sticky; top: 0; background: var(--card) }
.number { text-align: right; font-variant-numeric: tabular-nums }
tr.unfinished td { color: var(--faint); font-style: italic }
details { margin: .4rem 0 } summary { cursor: pointer }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--rule); padding: .6rem; font-size: .8rem }
#hover { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper); padding: .25rem .5rem;
  border-radius: 4px; font-size: .85rem; max-width: 20rem; z-index: 2 }
@media (max-width: 40rem) { body { font-size: 15px } svg text { font-size: 17px } }
@media print { :root { color-scheme: light; --paper: #fff; --card: #fff } nav, #hover { display: none }
  body { max-width: none; padding: 0; font-size: 10pt } .wide { overflow: visible; border: 0 }
  table { font-size: 7pt } th { position: static } td, th { white-space: normal; padding: .1rem .25rem }
  figure, .verdict, tr { break-inside: avoid } .figures { grid-template-columns: 1fr 1fr } }
"""
    + "".join(
        f".line.c{n}, .whisker.c{n} {{ stroke: var(--c{n}) }} .dot.c{n} {{ fill: var(--c{n}) }}\n"
        for n in range(len(_LIGHT))
    )
)

SCRIPT = """
const box = document.getElementById("hover");
function show(dot) {
  box.textContent = dot.dataset.cell;
  box.hidden = false;
  const at = dot.getBoundingClientRect();
  const left = Math.min(at.left + 12, innerWidth - box.offsetWidth - 8);
  box.style.left = Math.max(8, left) + "px";
  box.style.top = (at.top > 60 ? at.top - box.offsetHeight - 8 : at.bottom + 8) + "px";
}
for (const dot of document.querySelectorAll(".dot")) {
  const title = dot.querySelector("title");
  if (title) title.remove();
  for (const event of ["mouseenter", "focus", "click"]) dot.addEventListener(event, () => show(dot));
  for (const event of ["mouseleave", "blur"]) dot.addEventListener(event, () => { box.hidden = true; });
}
"""
