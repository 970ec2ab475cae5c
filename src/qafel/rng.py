"""Named random streams: one name gives the same numbers on any machine and in any order.

(seed, purpose, client, number) names a stream. No code in this package uses NumPy's global random state, so a run does
not depend on the number of workers or their order.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import final

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_NUMBERS, _KEY = struct.Struct("<qqq"), struct.Struct("<QQ")


@final
class Stream:
    """One named random stream, as a 128-bit key.

    Compiled kernels hash a counter with the key, two 64-bit words. Other code uses `generator()`. The key is computed
    at its first use, because many streams are never drawn from.
    """

    __slots__ = ("_name", "_words")

    def __init__(self, words: tuple[int, int]) -> None:
        """Create the stream with this key: two 64-bit words."""
        self._name: tuple[int, str, int, int] | None = None
        self._words = words

    @staticmethod
    def named(seed: int, purpose: str, client: int = 0, number: int = 0) -> Stream:
        """The stream of a run's `seed` for a `purpose`, such as "train".

        `client` is the owner, and `number` distinguishes its uses, such as the number of its earlier updates.
        """
        stream = Stream.__new__(Stream)
        stream._name = (seed, purpose, client, number)
        return stream

    @property
    def words(self) -> tuple[int, int]:
        """The key as two integers."""
        if self._name is not None:
            seed, purpose, client, number = self._name
            name = _NUMBERS.pack(seed, client, number) + purpose.encode()
            self._words = _KEY.unpack(blake2b(name, digest_size=16).digest())
            self._name = None
        return self._words

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> NDArray[np.uint64]:
        """The key, for NumPy's Philox. With `key=`, Philox would also draw a seed from the system."""
        return np.array(self.words, dtype=np.uint64)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)

    def __reduce__(self) -> tuple[type[Stream], tuple[tuple[int, int]]]:
        return Stream, (self.words,)

    def generator(self) -> np.random.Generator:
        """A NumPy generator at the start of the stream."""
        return np.random.Generator(np.random.Philox(self))  # type: ignore[arg-type]  # NumPy takes any ISeedSequence


ISeedSequence.register(Stream)
