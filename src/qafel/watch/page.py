"""The live page: a card per run, and the report's charts below. All text is written here.

The browser only replaces content, so figures are formatted in one place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import final

from qafel.drawing.chart import GREY, Panel, Style
from qafel.drawing.page import charts_json, note, page
from qafel.report.charts import charts_of
from qafel.report.groups import run_labels
from qafel.runs.live import LiveState, Rate
from qafel.runs.progress import histogram_mean
from qafel.runs.reading import BYTES
from qafel.text import UNKNOWN, counted, human_bytes, human_count, human_metric, human_seconds, printable
from qafel.watch.sources import Watched, seconds_left, seconds_to_target, seen_once

_MOST = 24  # runs on the page
_POINTS = 3000  # per chart, because charts are sent repeatedly
_NAMED = 12  # silent clients listed by number
_TITLE = "Runs, live"


@final
@dataclass(frozen=True)
class Picture:
    """The page's content at one moment: figures as HTML, charts as JSON."""

    figures: str
    charts: str
    panels: tuple[Panel, ...] = ()
    styles: tuple[Style, ...] = ()

    def whole_page(self) -> str:
        """The page, with this picture as its first state."""
        sections = [
            '<p class="note" id="connection" role="status">As of now: reload the page for more.</p>',
            f'<div id="live">{self.figures}</div>',
        ]
        return page(
            _TITLE,
            sections,
            self.panels,
            self.styles,
            live_script=_file("live.js"),
            live_style=_file("live.css"),
        )


@final
class Painter:
    """Draws pictures of runs. It remembers their pace to predict when they end."""

    def __init__(self) -> None:
        self._paces: dict[str, Rate] = {}

    def picture(self, watched: Sequence[Watched], notes: Iterable[str] = (), where: str = "") -> Picture:
        """Draw these runs. `notes` appear above them; `where` describes the sources."""
        chosen, left_out = _chosen(seen_once(watched))
        self._paces = {one.key: self._paces.get(one.key) or Rate(60.0, least_s=3.0) for one in chosen}
        labels = run_labels([one.run for one in chosen])
        drawn = [one for one in chosen if one.rows]
        charts = charts_of([one.run for one in drawn])
        styled = [pair for group in charts.groups for pair in group.styled]
        colours = {id(run): style.colour for own, style in styled for run in own.runs}
        remarks = [*map(printable, notes)]
        if left_out:
            remarks.append(f"Not shown: {counted(left_out, 'more run')}, which changed before these.")
        if not chosen:
            remarks.append(f"No run yet{f' in {printable(where)}' if where else ''}. New runs appear here.")
        articles = [
            self._card(one, label, colours.get(id(one.run), GREY)) for one, label in zip(chosen, labels, strict=True)
        ]
        curves = f'<section class="curves">{charts.html}</section>' if drawn else ""
        html = "".join([*map(note, remarks), f'<div class="runs">{"".join(articles)}</div>', curves])
        return Picture(html, charts_json(charts.panels, charts.styles, _POINTS), charts.panels, charts.styles)

    def _card(self, one: Watched, label: str, colour: str) -> str:
        state = one.word.partition(" ")[0]
        parts = [
            f'<header><span class="dot" style="background:{colour}"></span><h3>{escape(label)}</h3>'
            f'<span class="tag {escape(state)}">{escape(one.word)}</span></header>',
            f'<p class="problem">{escape(printable(one.problem))}</p>' if one.problem else "",
            _metric(one),
            self._progress(one),
            _list(_figures(one)),
            _clients(one.live) if one.live is not None and not one.run.finished else "",
        ]
        return f'<article class="card run {escape(state)}">{"".join(parts)}</article>'

    def _progress(self, one: Watched) -> str:
        run, live = one.run, one.live
        steps = f"{counted(_number(one, 'server_steps', 'version'), 'server step', human_count)}"
        if run.finished:
            spent = run.number("wall_s")
            return f'<p class="note">{steps}{f" in {human_seconds(spent)}" if math.isfinite(spent) else ""}</p>'
        if live is None or live.share_done is None:
            return f'<p class="note">{steps}</p>'
        share = min(1.0, live.share_done)
        left = seconds_left(live, self._paces[one.key])
        end = f", ends in {_about(left)}" if one.word == "running" and math.isfinite(left) else ""
        bar = f'<progress max="1" value="{share:.4f}">{share:.0%}</progress>'
        return f'{bar}<p class="note">{math.floor(100 * share)} % done: {steps}{end}</p>'


def _chosen(watched: Sequence[Watched]) -> tuple[list[Watched], int]:
    """The runs to show, in their order. Running ones have priority, then the latest."""
    if len(watched) <= _MOST:
        return list(watched), 0
    by_interest = sorted(watched, key=lambda one: (one.word != "running", one.heard_s))
    kept = {one.key for one in by_interest[:_MOST]}
    return [one for one in watched if one.key in kept], len(watched) - _MOST


def _metric(one: Watched) -> str:
    """The metric, the target, and the time to the target."""
    run = one.run
    value = float(run.column("metric")[-1]) if one.rows else math.nan
    text = human_metric(value) if one.rows else UNKNOWN
    name, target = str(run.summary.get("metric_name") or "metric"), run.number("target")
    words = ["no target"] if math.isnan(target) else [f"target {human_metric(target)}"]
    if (reached := one.target_reached) is not None:
        words.append(f"reached after {counted(reached, 'upload', human_count)}")
    elif not math.isnan(target) and one.word == "running":
        words.append(_time_to_target(seconds_to_target(one)))
    return (
        f'<p class="metric"><b>{escape(text)}</b> {escape(name)}<br>'
        f'<span class="note">{escape(", ".join(words))}</span></p>'
    )


def _time_to_target(seconds: float) -> str:
    if math.isnan(seconds):
        return "too early to predict"
    return "not in sight" if math.isinf(seconds) else f"in {_about(seconds)}"


def _about(seconds: float) -> str:
    """An approximate time: about 40 s, about 12 min."""
    minutes = round(seconds / 60)
    return f"about {human_seconds(round(seconds))}" if seconds < 99.5 or minutes >= 60 else f"about {minutes} min"


def _figures(one: Watched) -> list[tuple[str, str]]:
    """Names and values as HTML."""
    run, live = one.run, one.live
    counts = [round(count) for count in run.staleness_histogram.tolist()]
    stale = f"mean {human_count(round(histogram_mean(counts), 2))}, max {len(counts) - 1}" if any(counts) else UNKNOWN
    lag = live.hidden_state_lag if live is not None else None
    if lag is None:
        lag = float(run.column("hidden_state_lag")[-1]) if one.rows else math.nan
    rate = run.number("updates_per_s") if live is None or run.finished else live.updates_per_s
    return [
        ("uploads", human_count(_number(one, "uploads"))),
        ("rate", UNKNOWN if math.isnan(rate) else f"{human_count(round(rate) if rate >= 10 else rate)}/s"),
        ("total bytes", human_bytes(sum(_number(one, part) for part in BYTES))),
        ("up", human_bytes(_number(one, "upload_bytes_total"))),
        ("broadcast", human_bytes(_number(one, "broadcast_bytes_total"))),
        ("received", human_bytes(_number(one, "received_bytes_total"))),
        ("buffer", _buffer(one)),
        ("hidden-state lag", UNKNOWN if math.isnan(lag) else human_metric(lag)),
        ("staleness", stale),
        ("rejected", _rejected(one)),
    ]


def _number(one: Watched, key: str, live_name: str = "") -> float:
    """A figure from the driver's last state or, for a finished run, from the summary."""
    if one.live is not None and not one.run.finished:
        return float(getattr(one.live, live_name or key))
    return one.run.number(key)


def _buffer(one: Watched) -> str:
    live = one.live
    if live is None or one.run.finished or not live.buffer_size:
        return UNKNOWN
    full = f"{live.buffer_fill} of {live.buffer_size}"
    return f'<meter min="0" max="{live.buffer_size}" value="{live.buffer_fill}">{full}</meter> {full}'


def _rejected(one: Watched) -> str:
    live, summary = one.live, one.run.summary
    reasons: object = live.rejected if live is not None else summary.get("rejected")
    repeated = live.repeated if live is not None else summary.get("repeated")
    if not isinstance(reasons, Mapping):
        return UNKNOWN
    text = ", ".join(f"{human_count(count)} {reason}" for reason, count in sorted(reasons.items())) or "none"
    return escape(text + (f"; {counted(repeated, 'repeat', human_count)}, counted once" if repeated else ""))


def _clients(live: LiveState) -> str:
    """Training and silent clients: counts, the silent ones by number, and the others on demand."""
    others = live.clients - live.training_count - (live.silent_count or 0)
    silent = "silent: not counted" if live.silent_count is None else f"{human_count(live.silent_count)} silent"
    counts = f"{human_count(live.training_count)} of {human_count(live.clients)} clients train, {silent}"
    idle = "not seen yet" if live.virtual_time_unit == "s" else "idle"
    counts += f", {human_count(others)} {idle}" if others > 0 else ""
    named = sorted(live.silent.items(), key=lambda pair: -(pair[1] or 0.0))
    chips = [(client, "" if since is None else human_seconds(round(since))) for client, since in named]
    unnamed = (live.silent_count or 0) - _NAMED
    more = f"<li>and {human_count(unnamed)} more</li>" if unnamed > 0 else ""
    failing = counted(live.failing_count, "client", human_count)
    training = _chips([(client, f"{behind:,} behind") for client, behind in _by_number(live.training)])
    list_of = f"<details><summary>{counts}</summary><p>Versions behind (some clients):</p>{training}</details>"
    return (
        f'<div class="clients">{list_of if training else f"<p>{counts}</p>"}'
        f"{f'<p>Silent for:</p>{_chips(chips[:_NAMED], more)}' if chips else ''}"
        f"{f'<p>Training fails at {failing}:</p>{_chips(list(live.failing.items()))}' if live.failing else ''}</div>"
    )


def _by_number(clients: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(clients.items(), key=lambda pair: (len(pair[0]), pair[0]))


def _chips(pairs: Sequence[tuple[str, str]], more: str = "") -> str:
    inside = "".join(
        f"<li><b>{escape(client)}</b>{f' {escape(words)}' if words else ''}</li>" for client, words in pairs
    )
    return f'<ul class="chips">{inside}{more}</ul>' if inside else ""


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in pairs)}</dl>"


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
