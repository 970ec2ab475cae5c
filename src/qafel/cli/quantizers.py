"""The quantizers, each with its theory and what it does to two kinds of data."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from qafel.cli.progress import console
from qafel.errors import UserError
from qafel.quantizers import measured, parse
from qafel.quantizers.samples import SHOWN, gaussian, heavy_tailed
from qafel.rng import Stream


def quantizers(
    specs: Annotated[list[str] | None, typer.Argument(help="Specs to show instead of the usual ones.")] = None,
    size: Annotated[int, typer.Option("--size", "-d", help="Coordinates of the vector.", min=1)] = 29282,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the quantizers with δ, ω, bytes, and the error on Gaussian and heavy-tailed (Student t, 3) data.

    Example: qafel quantizers --size 29282
    """
    if size > 10_000_000:
        raise UserError(
            f"--size {size} is too much for a table: at most 10000000; `qafel bench quantizers` goes further"
        )
    rows = [quantizer_row(spec, size) for spec in specs or SHOWN]
    if json_output:
        print(json.dumps(rows, indent=2))
        return
    console.print(_table(rows, size))
    console.print(
        "mean = x: unbiased, fit for clients. ω, δ: worst case over all vectors; no δ > 0: unfit for the server. "
        "NMSE, t(3): error measured on Gaussian and on Student-t(3) data. bound: 2^(−2R), the least at R bits.",
        style="dim",
    )


def quantizer_row(spec: str, size: int) -> dict[str, Any]:
    """One row: theory, bytes, measured error."""
    quantizer = parse(spec)
    stream = Stream.named(0, "quantizer table")
    normal = measured(quantizer, [gaussian(size)], 3, stream)
    heavy = measured(quantizer, [heavy_tailed(size)], 3, stream)
    return {
        "quantizer": quantizer.spec,
        "size": size,
        "unbiased": quantizer.unbiased,
        "omega": quantizer.omega(size),
        "delta": quantizer.delta(size),
        "bits_per_coordinate": normal.bits_per_coordinate,
        "bytes": round(normal.payload_bytes),
        "nmse_gaussian": normal.nmse,
        "nmse_heavy_tailed": heavy.nmse,
        "rate_distortion_bound": 2.0 ** (-2 * normal.bits_per_coordinate),
    }


def _table(rows: list[dict[str, Any]], size: int) -> Table:
    table = Table(
        title=f"{size:,} coordinates", box=None, header_style="bold", title_justify="left", padding=(0, 1, 0, 0)
    )
    table.add_column("quantizer", no_wrap=True)
    table.add_column("mean", no_wrap=True)
    for name in ("ω", "δ", "bits", "bytes", "NMSE", "t(3)", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["quantizer"],
            "= x" if row["unbiased"] else "",
            f"{row['omega']:.2g}",
            f"{row['delta']:.2g}" if row["delta"] > 0 else "[red]–[/red]",
            f"{row['bits_per_coordinate']:.2f}",
            f"{row['bytes']:,}",
            f"{row['nmse_gaussian']:.2g}",
            f"{row['nmse_heavy_tailed']:.2g}",
            f"{row['rate_distortion_bound']:.0e}",
        )
    return table
