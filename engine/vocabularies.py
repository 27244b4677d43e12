"""The two kinds of vocabulary of Llama-family files, each as a merge engine of the `tokenizers` library and bytes per token.

Knows file conventions (GGUF's token types and pre-tokenizer names); knows nothing of prompts. Control tokens are left to the
caller: the engines built here read all text as plain text.
"""

from typing import Any, Final

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from engine.core.errors import WeightsError
from engine.weights.tokenizer_data import TokenizerData

CONTROL: Final = 3
USER_DEFINED: Final = 4
BYTE: Final = 6

_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{%s}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), _BYTES])


_DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _GPT2])
_LLAMA_BPE = _split_by(_LLAMA3 % "1,3")
_PRE_TOKENIZERS: Final = {
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _split_by(_LLAMA3 % "1"),
}
"""How text is cut before merging, by the name that GGUF files give it."""
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})
"""Rules under which a piece that is a token as a whole is never split by merge order."""


def byte_level(data: TokenizerData) -> tuple[Tokenizer, tuple[bytes, ...]]:
    """A byte-level BPE engine and the bytes of each token.

    Raises:
        WeightsError: the pre-tokenizer is unknown, or a merge names what is not a token.
    """
    cutter = _PRE_TOKENIZERS.get(data.pre_tokenizer)
    if cutter is None:
        known = ", ".join(f"`{name}`" for name in _PRE_TOKENIZERS)
        raise WeightsError(
            f"the model file names the pre-tokenizer `{data.pre_tokenizer}`, which is not supported; supported are {known}"
        )
    merges = [tuple(merge.split(" ")) for merge in data.merges]
    for i, merge in enumerate(merges):
        if len(merge) != 2:
            raise WeightsError(
                f"merge {i} of the model file is {data.merges[i]!r}; it must be two parts and one space"
            )
    model = _bpe(
        vocab=_plain(data),
        merges=merges,
        ignore_merges=data.pre_tokenizer in _WHOLE_WORDS_FIRST,
    )
    engine = Tokenizer(model)
    engine.pre_tokenizer = cutter
    byte_of = {char: bytes([value]) for value, char in byte_letters().items()}
    pieces = tuple(
        _piece(text, kind, byte_of) for text, kind in zip(data.tokens, data.types, strict=True)
    )
    return engine, pieces


def sentence_pieces(data: TokenizerData) -> tuple[Tokenizer, tuple[bytes, ...]]:
    """A sentence-piece engine (merges by score, unknown characters as bytes) and the bytes of each token.

    Any two tokens whose concatenation is a token may merge; the higher that token's score, the earlier.

    Raises:
        WeightsError: scores are missing, or there is no unknown token.
    """
    if len(data.scores) != len(data.tokens):
        raise WeightsError(
            f"the tokenizer of the model file has {len(data.tokens)} tokens and {len(data.scores)} scores;"
            " sentence pieces need one score a token"
        )
    if data.unknown_id is None or not 0 <= data.unknown_id < len(data.tokens):
        raise WeightsError(
            "the tokenizer of the model file names no unknown token; sentence pieces need one"
        )
    vocab = _plain(data)
    order = sorted(
        (id_ for text, id_ in vocab.items() if len(text) > 1),
        key=lambda id_: (-data.scores[id_], id_),
    )
    merges: list[tuple[str, ...]] = []
    for id_ in order:
        text = data.tokens[id_]
        pairs = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
        merges += [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
    model = _bpe(
        vocab=vocab | {data.tokens[data.unknown_id]: data.unknown_id},
        merges=merges,
        unk_token=data.tokens[data.unknown_id],
        fuse_unk=True,
        byte_fallback=True,
    )
    engine = Tokenizer(model)
    engine.normalizer = normalizers.Replace(" ", "\u2581")
    pieces = tuple(
        b""
        if kind == CONTROL
        else bytes([int(text[1:-1], 16)])
        if kind == BYTE
        else text.replace("\u2581", " ").encode()
        for text, kind in zip(data.tokens, data.types, strict=True)
    )
    return engine, pieces


def _bpe(**settings: Any) -> models.BPE:
    try:
        return models.BPE(**settings)
    except Exception as error:  # the library raises bare Exception
        raise WeightsError(
            f"the merges of the model file do not fit its vocabulary: {error}"
        ) from error


def _plain(data: TokenizerData) -> dict[str, int]:
    """Text to id of what plain text can become: everything but control tokens; of equal texts the first."""
    vocab: dict[str, int] = {}
    for i, (text, kind) in enumerate(zip(data.tokens, data.types, strict=True)):
        if kind != CONTROL:
            vocab.setdefault(text, i)
    return vocab


def _piece(text: str, kind: int, byte_of: dict[str, bytes]) -> bytes:
    if kind == CONTROL:
        return b""
    if kind == USER_DEFINED:
        return text.encode()
    return b"".join([byte_of.get(char) or char.encode() for char in text])


def byte_letters() -> dict[int, str]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Bytes that are printable in Latin-1 stand for themselves, the others take code points from 256 on, in order.
    Source: the encoder released with GPT-2 (2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {value: chr(value) for value in printable}
    rest = [value for value in range(256) if value not in letters]
    return letters | {value: chr(256 + i) for i, value in enumerate(rest)}
