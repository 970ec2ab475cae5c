"""Named random streams: the same name, the same numbers, on any machine and in any order.

A stream is named by (seed, purpose, client, number). Nothing in this package touches NumPy's global random state,
so a run does not depend on how many workers it had or in which order they finished.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray


@final
@dataclass(frozen=True, slots=True)
class Stream:
    """One named random stream, as a 128-bit key.

    Compiled kernels take `key`, two 64-bit words, and hash a counter with it; everything else takes `generator()`.
    """

    words: tuple[int, int]

    @staticmethod
    def named(seed: int, purpose: str, client: int = 0, number: int = 0) -> Stream:
        """The stream for a purpose, such as ("train", client, how many updates that client made before)."""
        name = struct.pack("<qqq", seed, client, number) + purpose.encode()
        return Stream(struct.unpack("<QQ", hashlib.blake2b(name, digest_size=16).digest()))

    @property
    def key(self) -> NDArray[np.uint64]:
        return np.array(self.words, dtype=np.uint64)

    def generator(self) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self.key))
