"""`qafel bench simulator`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from qafel.cli.progress import console, errors
from qafel.results.run_directory import write_atomically
from qafel.simulator.benchmark import all_cases, measure


def bench_simulator(
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")] = None,
) -> None:
    """Measure the simulator against a bare loop that only does the same training, with 4 bits both ways.

    With the extra torch, the paper's networks too; `python benchmarks/neural.py` compares those with plain PyTorch.

    Example: qafel bench simulator --json simulator.json
    """
    table = Table(box=None, header_style="bold")
    for name in ("task", "clients", "d", "updates/s", "bare loop/s", "ratio", "overhead µs", "peak MiB"):
        table.add_column(name, justify="left" if name == "task" else "right")
    rows, cases = [], all_cases()
    with errors.status("measuring") as status:
        for number, row in enumerate(measure(cases), start=1):
            rows.append(row)
            status.update(f"measured {number} of {len(cases)}: {row.task}, {row.clients:,} clients")
            table.add_row(
                row.task if row.batch_size is None else f"{row.task}, batch {row.batch_size}",
                f"{row.clients:,}",
                f"{row.dimension:,}",
                f"{row.updates_per_s:,.0f}",
                f"{row.bare_updates_per_s:,.0f}",
                f"{row.ratio:.2f}",
                f"{row.overhead_us:.1f}",
                f"{row.peak_mib:,.0f}",
            )
    console.print(table)
    if json_file is not None:
        write_atomically(json_file, (json.dumps([asdict(row) for row in rows], indent=2) + "\n").encode())
        console.print(f"rows in {json_file}", highlight=False)
