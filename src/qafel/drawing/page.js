// Draws a page's charts with Plotly. Legend buttons hide and show series, other buttons switch scales.
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

function withPrefix(value) {
  const thousands = Math.min(5, Math.max(0, Math.floor(Math.log10(value) / 3 + 1e-9)));
  return Number((value / 1000 ** thousands).toPrecision(3)) + ['', 'k', 'M', 'G', 'T', 'P'][thousands];
}

// One tick per decade: about three for few decades, at most eight for many.
function steps(own) {
  const most = narrow() ? 6 : 9;
  if (own.type !== 'log') return { nticks: most };
  const decades = own.range[1] - own.range[0];
  // Plotly omits the unit between powers of ten, and a single label is not enough.
  const first = Math.ceil(own.range[0]), powers = Math.floor(own.range[1]) - first + 1;
  if (own.ticksuffix && decades >= 1 && powers < 2) {
    const tickvals = [first - 1, first, first + 1].flatMap(power => [1, 3].map(digit => digit * 10 ** power));
    return { tickvals, ticktext: tickvals.map(value => withPrefix(value) + own.ticksuffix) };
  }
  const few = decades < (own.ticksuffix ? 1 : 2);
  return few ? { nticks: Math.max(3, Math.floor(3 * decades)) } : { dtick: Math.ceil(decades / (most - 1)) };
}

function axis(own) {
  const colour = colours();
  return Object.assign({ automargin: true, gridcolor: colour('grid'), linecolor: colour('muted'), zeroline: false,
    tickfont: { size: 12 }, uirevision: own.type }, steps(own), own, { title: Object.assign({ font: { size: 13 }, standoff: 8 }, own.title) });
}

// A dashed line across the chart, with its label at the left end, away from the curves.
function target(height, colour) {
  return { type: 'line', layer: 'between', xref: 'paper', x0: 0, x1: 1, y0: height, y1: height,
    line: { color: colour('muted'), dash: 'dash', width: 2 },
    label: { text: 'target ' + height, textposition: 'start', font: { color: colour('muted') } } };
}

// Names are above their rows. Beside them, they would take the room of the bars on a phone.
function rows(names) {
  const gap = 0.65;
  const places = names.map((text, row) => ({ text, x: 0, xanchor: 'left', y: row - 0.5 * (1 - gap), yanchor: 'bottom',
    showarrow: false, font: { size: 12 }, borderpad: 0 }));
  return { bargap: gap, annotations: places };
}

function layout(chart) {
  const colour = colours();
  const names = chart.layout.rows, own = Object.assign({}, chart.layout, names.length ? rows(names) : {});
  const above = { range: [names.length - 0.6, -0.75], showgrid: false, showticklabels: false };
  return Object.assign(own, {
    xaxis: axis(Object.assign({}, own.xaxis, names.length ? { nticks: 4 } : {})),
    yaxis: axis(Object.assign({}, own.yaxis, names.length ? above : {})),
    shapes: own.targets.map(height => target(height, colour)),
    paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)', showlegend: false, autosize: true,
    font: { color: colour('ink'), family: getComputedStyle(document.body).fontFamily },
    hoverlabel: { bgcolor: colour('card'), bordercolor: colour('muted'), font: { color: colour('ink') },
      namelength: 30 },
    margin: { l: 12, r: narrow() ? 16 : 22, t: 14, b: 12 }, hovermode: 'closest',
    dragmode: touch ? false : 'zoom',
  });
}

// The buttons store the hidden series and the chosen scales.
function follow(chart) {
  const pressed = button => button.getAttribute('aria-pressed') === 'true';
  for (const trace of chart.traces) {
    const button = document.querySelector(`.legend button[data-style="${trace.meta.style}"]`);
    trace.visible = !button || pressed(button);
  }
  for (const button of document.querySelectorAll(`.chart header button[data-chart="${chart.key}"]`)) {
    const own = chart.layout[button.dataset.axis + 'axis'];
    own.type = pressed(button) ? 'log' : 'linear';
    if (own.ranges) own.range = own.ranges[own.type].slice();
  }
}

function draw() {
  charts.forEach(follow);
  return Promise.all(charts.map(chart => Plotly.react(plot(chart.key), chart.traces, layout(chart), {
    responsive: true, displayModeBar: false })));
}

document.addEventListener('click', event => {
  const button = event.target.closest('.legend button, .chart header button');
  if (!button) return;
  button.setAttribute('aria-pressed', String(button.getAttribute('aria-pressed') !== 'true'));
  button.dataset.chosen = 'by the reader';
  draw();
});

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', draw);
draw().then(() => { document.documentElement.dataset.drawn = charts.length; });
