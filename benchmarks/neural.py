"""Print how fast clients train: `python benchmarks/neural.py [--json FILE] [--rounds N]`."""

import argparse
import json
from pathlib import Path

from qafel.bench.training import neural_benchmark


def main() -> None:
    """Measure and print; the machine should have nothing else to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    figures = neural_benchmark(arguments.rounds)
    for rate in figures.rates:
        print(f"{rate.model:5} batch {rate.batch_size:3}  {rate.trainer:16} {rate.updates_per_s:8.1f} updates/s")
    for name, ratio in figures.ratios().items():
        print(f"{name:50} {ratio:6.2f}")
    if not figures.bfloat16:
        print("this CPU has no bfloat16 that PyTorch can use: the LSTM trains in float32")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures.as_dict(), indent=2) + "\n")


if __name__ == "__main__":
    main()
