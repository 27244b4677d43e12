"""Prompts of a wanted length that share what the trace says they share: common words, chosen by block id, then by request. Knows no server.

A text of w words has about `offset + per_word * w` tokens; both are measured on the server at hand (`calibrate`). With one token a word, which byte-pair
vocabularies of English have for these, lengths are exact.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from traces.schema import TraceRequest

_TEXT: Final = """
time year people way day man thing woman life child world school state family student group country problem hand part place case
week company system program question work government number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father power hour game line end member law car
city community name president team minute idea body information back parent face level office door health person art war history
party result change morning reason research girl moment air teacher force education food music letter paper space ground form
event river street table field
"""
WORDS: Final = tuple(_TEXT.split())
"""Each is one token with the space before it, in most vocabularies."""
_TAIL: Final = 1 << 62
"""Keys from here on belong to requests, those below to blocks."""
_ODD: Final = 0x9E3779B97F4A7C15
"""Keeps the places of neighbouring keys apart."""


class Yardstick(Struct, frozen=True, kw_only=True):
    """How many tokens a text of so many words has."""

    per_word: float
    offset: float
    """What every prompt has on top: a first token, a chat's template."""
    source: str
    """Where it was measured."""

    def words(self, num_tokens: int) -> int:
        """How many words make a prompt of about `num_tokens`, at least 1."""
        return max(1, round((num_tokens - self.offset) / self.per_word))


class Prompts:
    """Makes texts; the same row gives the same text."""

    def __init__(
        self, yardstick: Yardstick, hash_block_tokens: int, seed: int, words: Sequence[str] = WORDS
    ) -> None:
        self._yardstick = yardstick
        self._block_words = (
            max(1, round(hash_block_tokens / yardstick.per_word)) if hash_block_tokens else 0
        )
        self._seed = np.uint64(seed)
        self._words = np.array(words, object)

    def pieces(self, row: TraceRequest, number: int) -> Iterator[str]:
        """The text of request `number` in pieces, to be joined by spaces: a piece a block, then one that is the request's own."""
        left = self._yardstick.words(row.num_prompt)
        for block in row.hash_ids:
            size = min(self._block_words, left)
            if not size:
                return
            yield self._text(block & (_TAIL - 1), size)
            left -= size
        if left:
            yield self._text(_TAIL + number, left)

    def _text(self, key: int, size: int) -> str:
        start = key * _ODD % (1 << 64)
        places = np.arange(size, dtype=np.uint64) + np.uint64(start)
        chosen = _mixed(places ^ self._seed) % np.uint64(len(self._words))
        return " ".join(self._words[chosen.astype(np.int64)])


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Well spread bits of each (the finaliser of SplitMix64, Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
