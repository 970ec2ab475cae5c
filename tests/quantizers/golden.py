"""Golden frames: broadcasts of every codec, and the digests of what they must decode to on every machine.

`python -m tests.quantizers.golden` holds this process against the file, whatever CPU Numba was told to compile for;
with `--write` it makes the file anew, which only a change of the format allows.

A frame is a broadcast as it crosses, and its header holds the digest of the x̂ that must result. Beside it stand the
digests of decode(payload), of x̂ + decode and of x̂ + 0.3·decode.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from qafel.algorithm import HiddenState, Kind, Message, method
from qafel.params import Layout, Vector
from qafel.quantizers import Quantizer, from_codec, parse
from qafel.rng import Stream
from tests.quantizers.oracle import hash_pair
from tests.quantizers.specs import SPECS

FILE = Path(__file__).with_name("golden.jsonl")
WEIGHT = 0.3
LAYOUT = Layout.of({"a": (5, 7), "b": (7,), "c": (3, 2, 4), "d": (1,)})
TENSORS = Layout.of({"a": (40, 30), "b": (40,), "c": (3, 5, 64), "empty": (0, 3), "d": (1,)})
LAYOUTS = {layout.size: layout for layout in (LAYOUT, TENSORS)}
STREAM = Stream((0x0123456789ABCDEF, 0xFEDCBA9876543210))


class Golden(NamedTuple):
    """A frame and the digests of what becomes of it."""

    spec: str
    values: str
    size: int
    frame: bytes
    decoded: str
    added: str
    weighted: str

    @property
    def layout(self) -> Layout | None:
        """Frames over a layout's parameters are made with it."""
        return LAYOUTS.get(self.size)

    @property
    def shapes(self) -> list[tuple[int, ...]] | None:
        return None if self.layout is None else [shape for _, shape in self.layout.tensors]


def vector(values: str, size: int, key: int = 1) -> Vector:
    """Numbers that are the same everywhere: from integers, by powers of two."""
    first, second = hash_pair(np.arange(size), (key, 2, 3, 4))
    signed = (first & 0xFFFF).astype(np.float64) - 32768
    lowest, spread = {"mixed": (-18, 16), "subnormal": (-149, 8), "huge": (97, 16)}[values]
    powers = (second % spread).astype(np.int64) + lowest
    return np.ldexp(signed, powers).astype(np.float32)


def digest(x: Vector) -> str:
    return xxhash.xxh3_64_hexdigest(x.astype("<f4").tobytes())


def cases() -> Iterator[tuple[str, str, int]]:
    """Spec, kind of values and size of every golden frame."""
    for spec in SPECS:
        yield spec, "mixed", 113
        yield spec, "mixed", 520
        yield spec, "subnormal", 40
        yield spec, "huge", 40
    for bits in range(1, 9):
        for name in ("qsgd", "dithered", "affine", *(["rotated"] if bits <= 6 else [])):
            yield f"{name}:{bits}", "mixed", 150
    for size in (1, 33, 98, 1100, 2200, 4500):
        yield "rotated:3", "mixed", size
    for spec in (spec for spec in SPECS if spec.startswith("trellis")):
        yield spec, "mixed", 1100
        yield spec, "huge", 1024
        yield spec, "subnormal", 1500
    for size in (2200, 4096, 4500):
        yield "trellis:0.5", "mixed", size
        yield "trellis:3,states=32", "mixed", size
    for spec in ("affine:4", "affine:3+zstd", "top_k:0.3,values=sign", "rand_k:0.3,values=rotated:2"):
        yield spec, "mixed", LAYOUT.size
    for spec in (spec for spec in SPECS if spec.startswith("layers")):
        yield spec, "mixed", 4500
        yield spec, "mixed", TENSORS.size


def applied(quantizer: Quantizer, payload: bytes, size: int, weight: float) -> Vector:
    target = vector("mixed", size, key=2)
    quantizer.add_decoded_(target, payload, weight)
    return target


def make(spec: str, values: str, size: int) -> Golden:
    quantizer = parse(spec, LAYOUTS.get(size))
    payload = bytes(quantizer.encode(vector(values, size), STREAM))
    following = HiddenState.of(applied(quantizer, payload, size, 1.0), 1)
    frame = Message(Kind.BROADCAST, quantizer.codec, size, 0, payload, digest=following.digest).to_bytes()
    weighted = applied(quantizer, payload, size, WEIGHT)
    decoded = quantizer.decode(payload, size)
    return Golden(spec, values, size, frame, digest(decoded), digest(following.vector), digest(weighted))


def read() -> list[Golden]:
    rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    return [Golden(**{**row, "frame": base64.b64decode(row["frame"])}) for row in rows]


def write() -> None:
    rows = [make(*case)._asdict() for case in cases()]
    texts = [json.dumps({**row, "frame": base64.b64encode(row["frame"]).decode()}) for row in rows]
    FILE.write_text("".join(f"{text}\n" for text in texts))


def faults(golden: Golden) -> list[str]:
    """What this process makes otherwise than the golden frame says."""
    message = Message.from_bytes(golden.frame)
    payload, size = bytes(message.payload), golden.size
    quantizer = from_codec(message.codec, golden.layout)
    found = {
        "spec": quantizer.spec,
        "decoded": digest(quantizer.decode(payload, size)),
        "added": digest(applied(quantizer, payload, size, 1.0)),
        "weighted": digest(applied(quantizer, payload, size, WEIGHT)),
    }
    wrong = [name for name, value in found.items() if value != getattr(golden, name)]
    algorithm = method("qafel", buffer_size=1, client_lr=1.0, local_steps=1, server_lr=1.0, server_quantizer=quantizer)
    HiddenState.of(vector("mixed", size, key=2)).advanced(message, algorithm)  # raises unless the digest agrees
    # another version of zstandard may make another frame of the same codes
    if not golden.spec.endswith("+zstd") and quantizer.encode(vector(golden.values, size), STREAM) != payload:
        wrong.append("encoded")
    return [f"{golden.spec}, {golden.values}, {size}: {name} differs" for name in wrong]


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write()
    everything = [fault for golden in read() for fault in faults(golden)]
    print("\n".join(everything))
    sys.exit(1 if everything else 0)
