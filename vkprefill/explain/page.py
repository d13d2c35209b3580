"""An Explanation as one HTML page that needs nothing else: no host, no file, and no script to be read.

All text of the prompt and of model files is escaped. A Content-Security-Policy lets nothing run but the page's own
script (arrow keys and taps show a token's numbers) and its own style sheet, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from importlib.resources import files

from vkprefill.display import visible
from vkprefill.explain.explanation import (
    HEAT_LEVELS,
    Explanation,
    Piece,
    heat_scale,
    pieces,
    runs_as_shown,
    stretches,
    times_text,
)
from vkprefill.explain.layer_map import LayerMap, strips
from vkprefill.specprefill.settings import SpecPrefillConfig

CHART_HEIGHT = 100
STRIP_TOP, STRIP_HEIGHT = 106, 10  # below the bars: what is kept, token by token

PROMPT_LABEL = (
    "The prompt. Left and right go from token to token, up and down from one kept or dropped part to the next."
)

MAP_STYLE = (files("vkprefill") / "web" / "heat.css").read_text(encoding="utf-8")  # the chat page's too
STYLE = (
    MAP_STYLE
    + """
:root { --bar-off: #c4c4bc; }
@media (prefers-color-scheme: dark) { :root { --bar-off: #55554f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem clamp(1rem, 4vw, 2.5rem) 5rem; }
h1 { font-size: clamp(1.5rem, 1.1rem + 2vw, 2.1rem); line-height: 1.2; margin: 0 0 .5rem; letter-spacing: -.01em; }
h2 { font-size: 1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; }
figcaption, dt { color: var(--soft); font-size: .875rem; }
.status { display: inline-block; padding: .05rem .6rem; border: 1px solid currentColor; border-radius: 1rem;
  font: 600 .8125rem/1.6 ui-monospace, monospace; color: var(--soft); }
.status.active { color: var(--accent); }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .75rem; margin: 1.25rem 0 0; }
dl div { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
figure { margin: 0; }
.chart { display: block; width: 100%; height: 7.5rem; padding: .5rem; background: var(--card); border-radius: .5rem; }
.chart .on, .chart .kept { fill: var(--bar); } .chart .off { fill: var(--bar-off); }
.chart .hit { fill: transparent; } .chart a:hover .hit { fill: rgb(128 128 128 / .25); }
.tools { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: center; margin-bottom: .75rem;
  font-size: .875rem; }
.tools label { margin-right: .75rem; white-space: nowrap; }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: .1rem .4rem; }
.legend span { white-space: nowrap; }
figcaption { margin-top: .4rem; }
#prompt { padding: 1rem clamp(.75rem, 3vw, 1.5rem); }
#prompt:focus-visible, summary:focus-visible, input:focus-visible {
  outline: 2px solid var(--accent); outline-offset: 2px; }
#prompt span { scroll-margin: 6rem; }
:target { outline: 2px solid var(--accent); outline-offset: 1px; border-radius: 1px; }
main:has(#only:checked) #prompt del span { display: none; }
main:has(#only:checked) #prompt del { text-decoration: none; }
main:has(#only:checked) .gap { display: inline; }
#token { position: fixed; inset: auto 0 0; padding: .6rem 1rem; background: var(--card); }
details { margin-top: 2rem; } summary { font-weight: 600; cursor: pointer; }
table { border-collapse: collapse; margin-top: .5rem; font-size: .875rem; }
td, th { text-align: left; font-weight: 400; padding: .15rem 1.5rem .15rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; }
.changed > * { font-weight: 700; }
@media print { #token, .only { display: none; } }
"""
)

SCRIPT = """
const prompt = document.getElementById("prompt"), line = document.getElementById("token");
const tokens = [...prompt.querySelectorAll("span")];
let at = -1;
const shown = (i) => tokens[i].getClientRects().length > 0;
const dropped = (i) => tokens[i].parentElement.tagName === "DEL";
function show(i) {
  if (i < 0 || i >= tokens.length) return;
  if (at >= 0) tokens[at].classList.remove("at");
  at = i;
  tokens[i].classList.add("at");
  tokens[i].scrollIntoView({ block: "nearest" });
  line.hidden = false;
  line.textContent = tokens[i].title + (dropped(i) ? ", dropped" : ", kept");
}
function step(by, from = at) {
  let i = from + by;
  while (i >= 0 && i < tokens.length && !shown(i)) i += by;
  show(i);
}
function jump(by) {
  let i = Math.max(at, 0);
  while (i + by >= 0 && i + by < tokens.length && dropped(i) === dropped(Math.max(at, 0))) i += by;
  shown(i) ? show(i) : step(by, i);
}
const keys = {
  ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => jump(1), ArrowUp: () => jump(-1),
  Home: () => step(1, -1), End: () => step(-1, tokens.length),
};
prompt.addEventListener("keydown", (event) => {
  if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  keys[event.key]();
});
prompt.addEventListener("click", (event) => show(tokens.indexOf(event.target.closest("span"))));
"""


def page(explanation: Explanation, layers: LayerMap | None = None) -> str:
    """The whole document; layers: with a map of them."""
    kept, total = len(explanation.selection.kept), explanation.num_tokens
    title = f"{kept:,} of {total:,} tokens kept ({kept / total:.0%})"
    if not runs_as_shown(explanation):
        title = f"{kept:,} of {total:,} tokens would be kept ({kept / total:.0%})"
    of_layers = "" if layers is None else f"<h2>What the last token reads, layer by layer</h2>\n{strips(layers)}\n"
    policy = f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title} - vkprefill explain</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{_header(explanation, title)}
<h2>Chunk scores along the prompt</h2>
{_chart(explanation)}
{of_layers}<h2>Prompt</h2>
{_tools(explanation)}
<div id="prompt" role="group" tabindex="0" aria-label="{PROMPT_LABEL}">{_prompt(explanation)}</div>
{_settings(explanation)}
</main>
<output id="token" for="prompt" hidden></output>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _hash(text: str) -> str:
    """A Content-Security-Policy source for an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(text: object) -> str:
    return escape(visible(str(text)))


def _header(explanation: Explanation, title: str) -> str:
    report = explanation.report
    skipped = "" if runs_as_shown(explanation) else " Below is what scoring would choose."
    tiles = [
        ("kept stretches", f"{len(explanation.selection.kept_ranges):,}"),
        ("chunks", f"{len(explanation.selection.chunk_scores):,}"),
        *times_text(explanation),
    ]
    scored_by = (
        f"{_text(explanation.draft)} scored the prompt for {_text(explanation.target)} on {_text(explanation.device)}"
    )
    entries = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return f"""<header>
<h1>{title}</h1>
<p><span class="status {report.status}">{report.status}</span> {_text(report.reason)}.{skipped}</p>
<p class="soft">{scored_by}.</p>
<dl>{entries}</dl>
</header>"""


def _chart(explanation: Explanation) -> str:
    """Bars as wide as their chunks and as high as their scores; each leads to its chunk in the prompt."""
    selection, kept, total = explanation.selection, explanation.is_kept, explanation.num_tokens
    bounds, scores = selection.chunk_bounds.tolist(), selection.chunk_scores
    greatest = float(scores.max())
    bars = []
    for start, end, score in zip(bounds[:-1], bounds[1:], scores, strict=True):
        height = max(1.0, CHART_HEIGHT * float(score) / greatest) if greatest > 0 else 1.0
        whole = bool(kept[start:end].all())
        width = (end - start) * 0.94
        bars.append(
            f'<a href="#t{start}" tabindex="-1"><title>tokens {start} to {end - 1}: score {score:.3g}, '
            f"{'kept' if whole else 'dropped'}</title>"
            f'<rect class="hit" x="{start}" y="0" width="{end - start}" height="{CHART_HEIGHT}"/>'
            f'<rect class="{"on" if whole else "off"}" x="{start}" y="{CHART_HEIGHT - height:.1f}" width="{width:.2f}" '
            f'height="{height:.1f}"/></a>'
        )
    strip = "".join(
        f'<rect class="kept" x="{start}" y="{STRIP_TOP}" width="{end - start}" height="{STRIP_HEIGHT}"/>'
        for start, end in selection.kept_ranges
    )
    label = (
        f"{len(scores)} chunks, {sum(bool(kept[a:b].all()) for a, b in zip(bounds[:-1], bounds[1:], strict=True))} kept"
    )
    return f"""<figure>
<svg class="chart" viewBox="0 0 {total} {STRIP_TOP + STRIP_HEIGHT}" preserveAspectRatio="none" role="group"
aria-label="{label}">
{"".join(bars)}{strip}
</svg>
<figcaption>A bar is a chunk. Its score is the mean importance of its tokens, scaled and boosted by the settings; the
highest is {greatest:.3g}. Coloured bars are kept, grey ones dropped. The strip below shows all kept tokens, also those
that are kept in any case.</figcaption>
</figure>"""


def _tools(explanation: Explanation) -> str:
    low, top = heat_scale(explanation.importance)
    scale = "".join(f'<i class="h{level}"></i>' for level in range(HEAT_LEVELS))
    return f"""<div class="tools">
<div class="only" role="radiogroup" aria-label="Show">
<label><input type="radio" name="show" checked> whole prompt</label>
<label><input type="radio" name="show" id="only"> kept text only</label></div>
<div class="legend"><span>importance &le; {low:.2g}</span><span class="scale">{scale}</span><span>&ge; {top:.2g}</span>
<del>dropped</del></div>
</div>"""


def _prompt(explanation: Explanation) -> str:
    starts = set(explanation.selection.chunk_bounds.tolist())
    parts = []
    for kept, group in stretches(pieces(explanation)):
        text = "".join(_token(piece, starts) for piece in group)
        if kept:
            parts.append(text)
        else:
            count = group[-1].end - group[0].start
            parts.append(f'<del><b class="gap"> [{count} dropped]</b>{text}</del>')
    return "".join(parts)


def _token(piece: Piece, chunk_starts: set[int]) -> str:
    name = f"token {piece.start}" if piece.end == piece.start + 1 else f"tokens {piece.start} to {piece.end - 1}"
    anchor = next((f' id="t{t}"' for t in range(piece.start, piece.end) if t in chunk_starts), "")
    special = " special" if piece.special else ""
    title = f"{name}, importance {piece.importance:.3g}"
    return f'<span{anchor} class="h{piece.heat}{special}" title="{title}">{_text(piece.text)}</span>'


def _settings(explanation: Explanation) -> str:
    """Every setting; those that are not the default's in bold."""
    defaults = SpecPrefillConfig().as_dict()
    rows = "".join(
        f'<tr class="{"" if value == defaults.get(name) else "changed"}"><th scope="row">{_text(name)}</th>'
        f"<td>{_text(json.dumps(value))}</td></tr>"
        for name, value in explanation.report.settings.items()
    )
    note = '<p class="soft">Bold: not the default.</p>'
    return f"<details><summary>Settings</summary>{note}<table>{rows}</table></details>"
