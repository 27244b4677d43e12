"""Text to token ids and back, built from what a model file says about its vocabulary.

Knows the two kinds of vocabulary that Llama-family files have: byte-level BPE (`gpt2`) and sentence pieces (`llama`). Knows
nothing of chats, requests or models. Control tokens are found here and not by the library, because whether their text counts
as the token depends on who wrote it: in a prompt given as text it does, in what a chat user says it must not.
"""

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.core.errors import WeightsError
from engine.detokenize import Detokenizer
from engine.vocabularies import CONTROL, USER_DEFINED, byte_level, sentence_pieces
from engine.weights.tokenizer_data import TokenizerData


class Codec:
    """One model's tokenizer. Immutable, and safe to use from several threads.

    `pieces[i]` are the bytes of token i, empty for control tokens.
    """

    def __init__(self, data: TokenizerData) -> None:
        """Builds merge tables from `data`.

        Raises:
            WeightsError: the vocabulary is of a kind that is not supported, or contradicts itself.
        """
        _check(data)
        self.vocab_size = len(data.tokens)
        self.stop_tokens = frozenset(data.stop_ids)
        """Ids that end an answer and are never shown."""
        self.bos_id = data.bos_id if data.add_bos else None
        """The id that every prompt begins with, or None."""
        self.bos_text = "" if data.bos_id is None else data.tokens[data.bos_id]
        self.eos_text = "" if data.eos_id is None else data.tokens[data.eos_id]
        if data.model == "gpt2":
            self._model, self.pieces = byte_level(data)
            self._prefix = ""
        else:
            self._model, self.pieces = sentence_pieces(data)
            self._prefix = " " if data.add_space_prefix else ""
        self._control = _ids(data, CONTROL)
        self._user = _ids(data, USER_DEFINED)
        self._control_pattern = _any_of(self._control)
        self._user_pattern = _any_of(self._user)
        self._longest = max(len(text.encode()) for text in data.tokens)

    @property
    def control_texts(self) -> tuple[str, ...]:
        """What control tokens look like when written out."""
        return tuple(self._control)

    def encode(self, text: str, *, escape: str = "") -> NDArray[np.int32]:
        """[num_tokens] ids of a prompt; BOS first where the model wants it, and never twice. The array is read-only.

        The written form of a control token counts as that token, unless the character `escape` stands within it; `escape`
        itself is removed from what is encoded.
        """
        ids: list[int] = []
        for stretch, is_control in _split(text, self._control_pattern):
            if is_control:
                ids.append(self._control[stretch])
                continue
            plain = self._prefix + (stretch.replace(escape, "") if escape else stretch)
            for piece, is_user in _split(plain, self._user_pattern):
                if is_user:
                    ids.append(self._user[piece])
                else:
                    ids += self._model.encode(piece, add_special_tokens=False).ids
        if self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        array = np.array(ids, np.int32)
        array.flags.writeable = False
        return array

    def min_tokens(self, text: str) -> int:
        """A lower bound of how many tokens `text` has, from lengths alone: so that huge prompts are refused cheaply.

        It does not count that characters which the vocabulary lacks are left out.
        """
        return len(text) // self._longest

    def detokenizer(
        self, stop: tuple[str, ...], *, include_stop: bool = False, min_tokens: int = 0
    ) -> Detokenizer:
        """A fresh way from generated ids to text, which ends at the first of the strings in `stop`, as `Detokenizer` says."""
        return Detokenizer(self.pieces, stop, include_stop=include_stop, min_tokens=min_tokens)

    def decode(self, ids: Sequence[int] | NDArray[np.int32]) -> str:
        """The text of `ids`, control tokens left out, broken characters as U+FFFD."""
        return b"".join([self.pieces[int(i)] for i in ids]).decode("utf-8", errors="replace")


def _split(text: str, pattern: re.Pattern[str] | None) -> Iterator[tuple[str, bool]]:
    """Non-empty stretches of `text`, each with whether it matches `pattern`."""
    at = 0
    for match in pattern.finditer(text) if pattern is not None else ():
        if at < match.start():
            yield text[at : match.start()], False
        yield match[0], True
        at = match.end()
    if at < len(text):
        yield text[at:], False


def _any_of(texts: dict[str, int]) -> re.Pattern[str] | None:
    """A pattern for any of `texts`, the longest first."""
    ordered = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None


def _ids(data: TokenizerData, kind: int) -> dict[str, int]:
    """Text to id of the tokens of one kind."""
    pairs = zip(data.tokens, data.types, strict=True)
    return {text: i for i, (text, k) in enumerate(pairs) if k == kind and text}


def _check(data: TokenizerData) -> None:
    if data.model not in ("gpt2", "llama"):
        raise WeightsError(
            f"the tokenizer of the model file is of kind `{data.model}`; supported are `gpt2` (byte-level BPE) and"
            " `llama` (sentence pieces)"
        )
    if not data.tokens or len(data.tokens) != len(data.types):
        raise WeightsError(
            f"the tokenizer of the model file has {len(data.tokens)} tokens and {len(data.types)} token types;"
            " there must be as many of both, and at least one"
        )
    for name, token in (("bos", data.bos_id), ("eos", data.eos_id), ("eot", data.eot_id)):
        if token is not None and not 0 <= token < len(data.tokens):
            raise WeightsError(
                f"the {name} token id {token} of the model file is outside its vocabulary of {len(data.tokens)}"
            )
