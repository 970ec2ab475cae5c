"""`qafel demo`: the paper's first problem, QAFeL beside FedBuff and direct quantization."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel.cli.console import RunProgress, console
from qafel.config import load_recipe
from qafel.drawing.printed import save_figure
from qafel.report import comparison_figure, write_report
from qafel.runs.reading import Run
from qafel.runs.summary import Summary
from qafel.simulator.run import run as simulate
from qafel.text import human_bytes

REFERENCE = "mushrooms-fedbuff"
RECIPES = (
    REFERENCE,
    "mushrooms-qafel-4bit",
    "mushrooms-qafel-qsgd",
    "mushrooms-direct-qsgd",
    "mushrooms-qafel-topk",
    "mushrooms-direct-topk",
)


def demo(
    out: Annotated[Path, typer.Option(help="Where to write the runs, the picture and the report.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Server steps of each run.")] = 10_000,
    json_output: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
) -> None:
    """Compare QAFeL with FedBuff and direct quantization on mushrooms; no network, no torch, under a minute.

    Example: qafel demo --steps 2000
    """
    # Evaluated every tenth step: the demo is for looking, `qafel run` has every step.
    overrides = [f"stop.server_steps={steps}", "evaluation.every=10"]
    configs = [load_recipe(name, overrides, seed) for name in RECIPES]
    task = configs[0].task.make()  # the same in all of them
    with RunProgress() as progress:
        bars = [progress.bar(config.description, config.stop, "f − f*") for config in configs]
        summaries = [
            simulate(config, out / config.name, [bar], task=task, tensorboard=False)
            for config, bar in zip(configs, bars, strict=True)
        ]
    runs = [Run.load(out / config.name) for config in configs]
    save_figure(comparison_figure(runs), out / "comparison.png")
    write_report(runs, out / "report.html", title="QAFeL on mushrooms")
    if json_output:
        print(json.dumps(summaries, indent=2))
    else:
        console.print(_table([config.description for config in configs], summaries))
        console.print(f"picture: {out / 'comparison.png'}\nreport:  {out / 'report.html'}", highlight=False)


def _table(descriptions: list[str], summaries: list[Summary]) -> Table:
    reference = next(summary for summary in summaries if summary["name"] == REFERENCE)
    table = Table(
        box=None,
        header_style="bold",
        padding=(0, 1, 0, 0),
        title="Mushrooms: 100 clients, K = 10, P = 10; × is relative to FedBuff",
        title_justify="left",
    )
    for name in ("method", "f(x) − f*", "×", "uploads", "sent up", "broadcast", "traffic ×"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for description, summary in zip(descriptions, summaries, strict=True):
        table.add_row(
            description,
            "–" if summary["metric_final"] is None else f"{summary['metric_final']:.3e}",
            _times(summary["metric_final"], reference["metric_final"]),
            f"{summary['uploads']:,}",
            human_bytes(summary["upload_bytes_total"]),
            human_bytes(summary["broadcast_bytes_total"]),
            f"{_traffic(summary) / _traffic(reference):.3f}",
        )
    return table


def _times(metric: float | None, reference: float | None) -> str:
    if metric is None or not reference:
        return "–"
    worse = metric / reference
    return f"[{'red' if worse > 2 else 'green'}]{worse:.2f}[/]"


def _traffic(summary: Summary) -> int:
    return int(summary["upload_bytes_total"] + summary["broadcast_bytes_total"])
