"""Speed, latency, wire bytes and memory of a deployment on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from qafel.cli.broker import require_extra
from qafel.cli.units import human_bytes
from qafel.errors import ConfigError, OutputError

_CASES = ("default", "always", "paced", "listeners", "secured", "mutants")


def bench_deployment(
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the figures to this file.")] = None,
    updates: Annotated[
        int, typer.Option(help="Accepted updates per case; 100,000 for the memory figure.", min=500)
    ] = 20_000,
    clients: Annotated[int, typer.Option(help="Client processes, which do not train.", min=1)] = 10,
    dimension: Annotated[int, typer.Option(help="The model's parameters.", min=1)] = 29_282,
    listeners: Annotated[int, typer.Option(help="Clients that only receive, in the case `listeners`.", min=1)] = 200,
    only: Annotated[
        list[str] | None, typer.Option("--case", help=f"One of {', '.join(_CASES)}; may be repeated; all by default.")
    ] = None,
) -> None:
    """Measure a real broker, a server and client processes, d = 29,282, 4 bits both ways, file storage.

    Example: qafel bench deployment --json deployment.json
    """
    require_extra()
    from qafel.deployment.bench import Case, measure  # noqa: PLC0415

    cases = {
        "default": Case(updates, clients, dimension),
        "always": Case(updates, clients, dimension, sync="always"),
        "paced": Case(max(500, updates // 10), clients, dimension, min_interval_s=clients / 200),
        "listeners": Case(max(500, updates // 10), 2, dimension, listeners=listeners, min_interval_s=0.01),
        "secured": Case(updates, clients, dimension, secured=True),
        "mutants": Case(updates, clients, dimension, mutants=updates // 2),
    }
    for name in only or ():
        if name not in cases:
            raise ConfigError(f"unknown case {name!r}; choose from {', '.join(cases)}")
    found: dict[str, Any] = {}
    for name in only or cases:
        typer.echo(f"measuring {name} …", err=True)
        found[name] = measure(cases[name])
    Console().print(_table(found))
    if json_file is not None:
        try:
            json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write {json_file}: {error.strerror}") from error


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "accepted updates/s": lambda f: f"{f['updates_per_s']:,.0f}",
        "bytes an update": lambda f: f"{f['upload_bytes']:,.0f}",
        "upload to broadcast, median": lambda f: f"{1e3 * f['latency_median_s']:.1f} ms",
        "99th percentile": lambda f: f"{1e3 * f['latency_p99_s']:.1f} ms",
        "wire over payload, uploads": lambda f: f"{f['upload_wire_over_payload']:.3f}",
        "wire over payload, all": lambda f: f"{f['all_wire_over_payload']:.3f}",
        "server memory": lambda f: human_bytes(f["server_bytes"]),
        "its growth": lambda f: human_bytes(f["server_growth_bytes"]),
        "a client's memory": lambda f: human_bytes(f["client_bytes"]),
        "broker's memory": lambda f: human_bytes(f["broker_bytes"]),
        "deliveries/s to listeners": lambda f: _of(f, "listening", "deliveries_per_s", "{:,.0f}"),
        "first to last, 99th percentile": lambda f: _of(f, "listening", "spread_p99_s", "{:.3f} s"),
        "mutants sent": lambda f: _of(f, "mutants", "sent", "{:,}"),
        "of them accepted": lambda f: _of(f, "mutants", "accepted", "{:,}"),
        "updates/s without them": lambda f: _of(f, "mutants", "updates_per_s_without", "{:,.0f}"),
    }
    for label, show in rows.items():
        table.add_row(label, *(show(figures) for figures in found.values()))
    return table


def _of(figures: dict[str, Any], part: str, key: str, form: str) -> str:
    value = figures.get(part, {}).get(key)
    return "" if value is None else form.format(value)
