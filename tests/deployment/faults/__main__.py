"""The long form, by hand: python -m tests.deployment.faults --faults 300 --seed 1"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.deployment.clock import CANNOT
from tests.deployment.faults.kinds import KINDS, run_faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where everything lies afterwards; a temporary one by default")
    parser.add_argument("--kind", action="append", help="only faults of this kind; may be repeated")
    parser.add_argument("--unsecured", action="store_true", help="without TLS, keys and signatures")
    parser.add_argument("--catch-up", default="exact", choices=["exact", "link", "auto"])
    parser.add_argument("--pause", type=float, default=30.0, help="the longest pause of a process, in seconds")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further faults after so long")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the fleet ends with us
    folder = options.folder or Path(tempfile.mkdtemp(prefix="qafel-faults-"))
    kinds = {kind: weight for kind, weight in KINDS.items() if not options.kind or kind.__name__ in options.kind}
    faults = random.Random(options.seed).choices(list(kinds), list(kinds.values()), k=options.faults)
    began = time.monotonic()
    if CANNOT:
        print(f"no clock jumps: {CANNOT}", file=sys.stderr)

    def tell(number: int, name: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {number:4}/{len(faults)}  {name}", file=sys.stderr, flush=True)

    outcome = run_faults(
        folder,
        faults,
        seed=options.seed,
        most_s=options.seconds,
        secured=not options.unsecured,
        longest_pause_s=options.pause,
        catch_up=options.catch_up,
        tell=tell,
    )
    print(json.dumps({**outcome, "seconds": round(time.monotonic() - began)}))


if __name__ == "__main__":
    main()
