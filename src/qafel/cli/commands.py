"""All commands in one app. To load them takes half a second, so `qafel client` does without."""

from __future__ import annotations

import typer

from qafel.cli import bench, deploy, lists, new_app, paper, plan, report, run, status, sweep, tune, watch

app = new_app()
benchmarks = typer.Typer(help="Benchmarks that report ratios within one run.", no_args_is_help=True)
benchmarks.command("quantizers")(bench.bench_quantizers)
benchmarks.command("simulator")(bench.bench_simulator)
benchmarks.command("training")(bench.bench_training)
benchmarks.command("deployment")(bench.bench_deployment)
app.add_typer(benchmarks, name="bench")
app.add_typer(lists.tasks, name="tasks")
app.add_typer(deploy.broker, name="broker")
# Modules, not the functions in them: a function of the same name would hide its module in this package.
of_runs = (report.demo, run.run, sweep.sweep, report.report, watch.watch, paper.paper)
of_choices = (lists.recipes, lists.quantizers, plan.plan, tune.tune)
for command in (*of_runs, *of_choices, deploy.server, deploy.client, status.status):
    app.command()(command)
