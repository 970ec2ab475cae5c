"""The report's page: its skeleton, style and script. Nothing in it asks the network for anything.

A content security policy forbids every request and every script but the two whose digests it names, so even text that
slipped through unescaped could not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape

from qafel.drawing.chart import Chart
from qafel.drawing.styles import Style

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1f2328; --muted: #5b636d; --line: #e1e4e8;
  --grid: #e8eaee; --accent: #0072B2; }
@media (prefers-color-scheme: dark) { :root { --page: #0f1216; --card: #181c22; --ink: #e6e9ed; --muted: #9aa4af;
  --line: #2a3038; --grid: #2a3038; --accent: #56B4E9; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 6px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 36px 0 12px; }
h3 { font-size: 15px; margin: 0; font-weight: 600; }
p { margin: 0 0 12px; }
.lead { font-size: 16px; max-width: 70em; }
.note, footer { color: var(--muted); font-size: 13px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.scroll { overflow-x: auto; background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 9px 14px; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-weight: 500; font-size: 13px; vertical-align: bottom; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); font-weight: 600; }
table.figures th, table.figures td { padding: 9px 8px; }
table.figures thead th:not(:first-child) { white-space: normal; min-width: 4.2em; }
table.figures .short { white-space: nowrap; }
table.figures .long { overflow-wrap: anywhere; }
table.figures th:first-child { white-space: normal; min-width: 10em; max-width: 20em; overflow-wrap: break-word; }
td.text, thead th { max-width: 22em; }
td.text { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 8em; }
table:not(.figures) thead th { text-align: left; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 8px; }
.tag { font-size: 11px; font-weight: 500; color: var(--muted); border: 1px solid var(--line); border-radius: 6px;
  padding: 1px 5px; margin-left: 4px; }
.legend { position: sticky; top: 0; z-index: 5; display: flex; flex-wrap: wrap; gap: 6px; padding: 10px 0;
  max-height: 25vh; overflow-y: auto; background: var(--page); }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--card); border: 1px solid var(--line);
  border-radius: 16px; padding: 4px 12px; cursor: pointer; }
button:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.legend button { max-width: 100%; overflow-wrap: anywhere; text-align: left; }
.legend button[aria-pressed="false"] { opacity: 0.45; text-decoration: line-through; }
.legend svg { width: 22px; height: 8px; margin-right: 7px; vertical-align: middle; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; }
.chart { padding: 14px 14px 10px; min-width: 0; }
.wide { grid-column: 1 / -1; }
.charts + h3 { margin-top: 26px; }
h3:has(+ .charts) { margin-bottom: 10px; }
.chart header { display: flex; align-items: center; gap: 6px; min-height: 30px; }
.chart h3 { flex: 1; min-width: 0; overflow-wrap: anywhere; }
.chart header button { font-size: 12px; padding: 2px 9px; color: var(--muted); }
.chart header button[aria-pressed="true"] { color: var(--accent); border-color: var(--accent); }
.scroll + .note { margin-top: 8px; }
.chart .note { margin: 2px 0 0; }
details { margin: 0 0 8px; }
summary { cursor: pointer; padding: 6px 0; font-weight: 500; overflow-wrap: anywhere; }
footer { margin-top: 36px; }
#problem { display: none; padding: 10px 14px; border: 1px solid #D55E00; border-radius: 10px; margin: 0 0 12px; }
@media (max-width: 820px) { main { padding: 18px 12px 32px; } h1 { font-size: 22px; }
  .charts { grid-template-columns: minmax(0, 1fr); } .chart { padding: 12px 8px 8px; }
  .legend { flex-wrap: nowrap; overflow: auto hidden; }
  .legend button { flex: none; max-width: 75vw; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
  th, td { padding: 8px 10px; }
  th:first-child { min-width: 8.5em; max-width: 11em; white-space: normal; overflow-wrap: break-word; } }
@media print { .legend { position: static; max-height: none; flex-wrap: wrap; } .chart, tr { break-inside: avoid; }
  .chart header button { display: none; } }
"""


SCRIPT = """
'use strict';
const problem = text => {
  const box = document.getElementById('problem');
  box.textContent += 'A chart could not be drawn: ' + text + ' ';
  box.style.display = 'block';
};
window.addEventListener('error', event => problem(event.message));
window.addEventListener('unhandledrejection', event => problem(String(event.reason)));

const charts = JSON.parse(document.getElementById('charts').textContent);
const plot = key => document.getElementById('plot-' + key);
const touch = matchMedia('(pointer: coarse)').matches;
const narrow = () => innerWidth < 820;

function colours() {
  const root = getComputedStyle(document.documentElement);
  return name => root.getPropertyValue('--' + name).trim();
}

function axis(own) {
  const colour = colours();
  const made = Object.assign({ automargin: true, gridcolor: colour('grid'), linecolor: colour('muted'), zeroline: false,
    tickfont: { size: 12 }, nticks: narrow() ? 6 : 9, dtick: own.type === 'log' ? 1 : undefined }, own,
    { title: Object.assign({ font: { size: 13 }, standoff: 8 }, own.title) });
  // Steps like 'D2' are for logarithmic axes alone.
  if (typeof made.dtick === 'string' && made.type !== 'log') delete made.dtick;
  return made;
}

function layout(chart) {
  const colour = colours();
  return Object.assign({}, chart.layout, {
    xaxis: axis(chart.layout.xaxis), yaxis: axis(chart.layout.yaxis),
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', showlegend: false, autosize: true,
    font: { color: colour('ink'), family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: colour('card'), bordercolor: colour('muted'), font: { color: colour('ink') },
      namelength: 30 },
    margin: { l: 12, r: narrow() ? 16 : 22, t: 14, b: 12 }, hovermode: 'closest',
    dragmode: touch ? false : 'zoom',
  });
}

function draw() {
  return Promise.all(charts.map(chart => Plotly.react(plot(chart.key), chart.traces, layout(chart), {
    responsive: true, displayModeBar: false })));
}

for (const button of document.querySelectorAll('.legend button')) {
  button.addEventListener('click', () => {
    const shown = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', String(shown));
    for (const chart of charts)
      for (const trace of chart.traces)
        if (trace.meta.run === Number(button.dataset.run)) trace.visible = shown;
    draw();
  });
}

for (const button of document.querySelectorAll('.chart header button')) {
  button.addEventListener('click', () => {
    const log = button.getAttribute('aria-pressed') !== 'true';
    button.setAttribute('aria-pressed', String(log));
    const own = charts.find(chart => chart.key === button.dataset.chart).layout[button.dataset.axis + 'axis'];
    own.type = log ? 'log' : 'linear';
    if (own.ranges) own.range = own.ranges[own.type].slice();
    draw();
  });
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
draw().then(() => { document.documentElement.dataset.drawn = charts.length; });
"""


def page(title: str, body: str, data: str, plotly_js: str) -> str:
    """Put the page together; `title` and `body` are HTML, `data` is JSON without any `<`."""
    scripts = f"{_digest(plotly_js)} {_digest(SCRIPT)}"
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {scripts}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<div id="problem" role="alert"></div>
<noscript><p>The tables need nothing; the charts need JavaScript, all of which is in this file.</p></noscript>
{body}
</main>
<script type="application/json" id="charts">{data}</script>
<script>{plotly_js}</script>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _digest(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


# The parts of which every page is put together: legend, chart cards, the charts' data, tables that scroll.


_DASHES = {"solid": "", "dash": "5 3", "dot": "2 2", "dashdot": "6 2 2 2"}


def legend(styles: Sequence[Style], label: str = "Show or hide") -> str:
    """A button for every name, which shows or hides it in all charts."""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-run="{index}"><svg viewBox="0 0 22 8" aria-hidden="true">'
        f'<line x1="0" y1="4" x2="22" y2="4" stroke="{style.colour}" stroke-width="3" '
        f'stroke-dasharray="{_DASHES[style.dash]}"/></svg>{escape(style.label)}</button>'
        for index, style in enumerate(styles)
    )
    return f'<div class="legend" role="group" aria-label="{escape(label)}">{buttons}</div>'


def cards(charts: Sequence[Chart]) -> str:
    """A place for every chart, with its title, notes and switches."""
    return f'<div class="charts">{"".join(_card(chart) for chart in charts)}</div>'


def _card(chart: Chart) -> str:
    toggles = "".join(
        f'<button type="button" data-chart="{chart.key}" data-axis="{axis}" '
        f'aria-pressed="{str(chart.layout[f"{axis}axis"]["type"] == "log").lower()}">log {axis}</button>'
        for axis in chart.toggles
    )
    notes = f'<p class="note">{escape(" ".join(chart.notes))}</p>' if chart.notes else ""
    wide = " wide" if chart.wide else ""
    return (
        f'<section class="card chart{wide}"><header><h3>{escape(chart.title)}</h3>{toggles}</header>'
        f'{notes}<div class="plot" id="plot-{chart.key}" style="height:{chart.height}px"></div></section>'
    )


def chart_data(charts: Sequence[Chart]) -> str:
    """The charts as JSON that cannot end its script element early."""
    content = [{"key": chart.key, "traces": chart.traces, "layout": chart.layout} for chart in charts]
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def scrolling(table: str) -> str:
    """A table that scrolls by itself where it is wider than the page."""
    return f'<div class="scroll" tabindex="0">{table}</div>'
