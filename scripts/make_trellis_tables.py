"""Make src/qafel/quantizers/kernels/tables.json: the code tables of `trellis` and what each of them does to a Gaussian.

    python scripts/make_trellis_tables.py

The file is part of the format. Making it anew, on another machine, may give other numbers and so another codec: it is
kept with the source, and nothing reads this script but people. It takes a few minutes.

A fine table (from 0.8 bits on) is a Gaussian over the integers v, at one of a range of steps. A coarse one is trained:
seven levels, and their frequencies, such that distortion + λ · bits is least, by turns of a search (Viterbi), means
and counts (Lloyd), on normal random numbers.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from numba import njit

FILE = Path(__file__).parents[1] / "src" / "qafel" / "quantizers" / "kernels" / "tables.json"
TOTAL = 4096  # of the frequencies of the even numbers, and of the odd ones
UNIT = 1024  # levels are whole numbers of this part of σ
REACH = 4.5  # standard deviations that a fine table covers
TRELLIS = {8: (1, 3, 2), 32: (2, 5, 3)}  # z₁ = u ⊕ u₋ₐ ⊕ u₋ᵦ and the codebook u₋ᵧ: Ungerboeck's (13, 4) and (45, 10)
LAMBDAS = (0.985, 0.965, 0.945, 0.925, 0.9, 0.87, 0.835, 0.8, 0.76, 0.72, 0.675, 0.63, 0.585, 0.54, 0.5)
FIRST_RATIO, FINE = 0.69, 48  # σ/step of the first fine table, and how many there are, eight to the octave
SAMPLES = 1 << 17


@njit
def search(y, levels, bias, states, taps, v):  # type: ignore[no-untyped-def]
    """The best path for y, from state zero; `levels` empty: every whole number is one, and costs no bits."""
    first, last, book = taps
    size, half = y.size, states // 2
    choice = np.empty((size, states), np.uint8)
    metric, following = np.full(states, 1e30), np.empty(states)
    metric[0] = 0.0
    cost, best = np.empty(4), np.empty((size, 4), np.int16)
    for i in range(size):
        if levels.size == 0:
            for j in range(4):
                best[i, j] = j + 4 * math.floor((y[i] - j) * 0.25 + 0.5)
                cost[j] = (y[i] - best[i, j]) ** 2
        else:
            cost[:] = 1e30
            for at in range(7):
                j, here = (at - 3) & 3, (y[i] - levels[at]) ** 2 + bias[at]
                if here < cost[j]:
                    cost[j], best[i, j] = here, at - 3
        for p in range(half):
            j = 2 * (((p >> (first - 1)) ^ (p >> (last - 1))) & 1) + ((p >> (book - 1)) & 1)
            for u in range(2):
                a, b = metric[p] + cost[j ^ (2 * u)], metric[p + half] + cost[j ^ 2 ^ (2 * u)]
                choice[i, 2 * p + u] = b < a
                following[2 * p + u] = min(a, b)
        metric[:] = following
    state = np.argmin(metric)
    for i in range(size - 1, -1, -1):
        before = (state >> 1) | (half if choice[i, state] else 0)
        full = (before << 1) | (state & 1)
        v[i] = best[i, 2 * ((full ^ (full >> first) ^ (full >> last)) & 1) + ((full >> book) & 1)]
        state = before


def whole(shares: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """Frequencies that add up to TOTAL, at least one for each that is kept: the largest remainders are rounded up."""
    exact = shares * keep / (shares * keep).sum() * (TOTAL - keep.sum())
    counts = np.floor(exact).astype(np.int64)
    most = np.argsort(counts - exact, kind="stable")[: TOTAL - keep.sum() - counts.sum()]
    counts[most] += 1
    return counts + keep


def frequencies(weights: np.ndarray, reach: int, least: float = 0.0) -> np.ndarray:
    """Of the numbers −reach … reach, the even and the odd ones on their own."""
    odd = np.arange(-reach, reach + 1) % 2 == 1
    result = np.zeros(weights.size, np.int64)
    for part in (odd, ~odd):
        result[part] = whole(weights[part], weights[part] > least * weights[part].sum())
    return result


def bits(counts: np.ndarray) -> np.ndarray:
    return np.where(counts > 0, -np.log2(np.maximum(counts, 1e-300) / TOTAL), 1e4)


def described(y: np.ndarray, values: np.ndarray, rate: float) -> dict[str, float]:
    """Bits a coordinate, and where a group belongs that has such an error.

    With e the relative error of the unbiased Q, bits are shared out best where σ²·(e² + e) is the same for all groups.
    """
    inner = float(y @ values)
    e = float(y @ y) * float(values @ values) / inner**2 - 1
    return {"rate": round(rate, 5), "error": float(f"{e:.5g}"), "place": float(f"{1 / math.sqrt(e * e + e):.6g}")}


def coarse(states: int, weight: float, levels: np.ndarray, counts: np.ndarray) -> tuple[dict, np.ndarray, np.ndarray]:
    """A trained table for λ = weight, from the levels and frequencies of its neighbour."""
    generator, v = np.random.default_rng(states), np.empty(SAMPLES, np.int64)
    weights = counts / TOTAL
    for turn in range(40):
        y = generator.standard_normal(v.size)
        search(y, levels, -weight * np.log2(np.maximum(weights, 1e-6)), states, TRELLIS[states], v)
        found = np.bincount(v + 3, minlength=7) + 0.5
        means = np.bincount(v + 3, y, minlength=7) / found
        levels = np.where(found > 40, (levels + means) / 2 if turn > 25 else means, levels)
        weights = found.copy()
        for part in (slice(1, 6, 2), slice(0, 7, 2)):
            weights[part] /= found[part].sum()
    counts = frequencies(weights, 3, least=2e-4)
    levels = np.round(levels * UNIT) / UNIT
    y, v = generator.standard_normal(4 * SAMPLES), np.empty(4 * SAMPLES, np.int64)
    search(y, levels, weight * bits(counts), states, TRELLIS[states], v)
    figures = described(y, levels[v + 3], float(bits(counts)[v + 3].mean()))
    shown = {"levels": [int(level * UNIT) for level in levels], "bits": [round(b, 4) for b in bits(counts).tolist()]}
    return {**figures, "lambda": weight, "counts": counts.tolist(), **shown}, levels, counts


def fine(states: int, number: int) -> dict:
    """A table for normal numbers at σ/step = FIRST_RATIO · 2^(number/8)."""
    ratio = FIRST_RATIO * 2.0 ** (number / 8)
    reach = math.ceil(REACH * ratio)
    numbers = np.arange(-reach, reach + 1)
    counts = frequencies(np.exp(-(numbers**2) / (2 * (ratio**2 + 0.26))), reach)
    y, v = np.random.default_rng(states).standard_normal(4 * SAMPLES), np.empty(4 * SAMPLES, np.int64)
    search(y * ratio, np.empty(0), np.empty(0), states, TRELLIS[states], v)
    v = np.clip(v, -reach + (reach + v) % 2, reach - (reach - v) % 2)
    figures = described(y, v.astype(float), float(bits(counts)[v + reach].mean()))
    figures["square"] = round(float(np.square(v).mean()), 5)
    return {**figures, "ratio": float(f"{ratio:.6g}"), "counts": counts.tolist()}


def main() -> None:
    tables: dict[str, list[dict]] = {}
    for states in TRELLIS:
        rows, levels = [], np.arange(-3, 4) * 1.05
        counts = np.array([20, 250, 1700, 3500, 2356, 346, 20])
        for weight in reversed(LAMBDAS):
            row, levels, counts = coarse(states, weight, levels, np.maximum(counts, 1))
            rows.insert(0, row)
        rows += [fine(states, number) for number in range(FINE)]
        tables[str(states)] = rows
        for row in rows:
            bound = 1 / (4.0 ** row["rate"] - 1)
            print(states, row["rate"], row["place"], round(row["error"] / bound, 4), row.get("ratio", "trained"))
    lines = [f'"{s}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for s, rows in tables.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
