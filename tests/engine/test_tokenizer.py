"""Text to ids and back, against ids recorded from independent tokenizers."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from engine.core.errors import WeightsError
from engine.tokenizer import Codec
from engine.weights.load import load_model
from engine.weights.tokenizer_data import TokenizerData
from tests.gateway.vocabulary import END, FIRST_PIECE, PAD, START, byte_codec, byte_tokens

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "tokenizer"


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return data


def sentence_pieces(**changes: Any) -> TokenizerData:
    """The vocabulary that was trained and recorded with the sentencepiece library."""
    known = recorded("sentencepiece")
    data = TokenizerData(
        model="llama",
        pre_tokenizer="default",
        tokens=known["tokens"],
        types=known["types"],
        merges=[],
        scores=known["scores"],
        bos_id=1,
        eos_id=2,
        eot_id=None,
        unknown_id=0,
        add_bos=False,
        add_space_prefix=True,
        chat_template=None,
    )
    return replace(data, **changes)


@pytest.fixture(scope="module")
def default_codec() -> Codec:
    return Codec(load_model(None).tokenizer)


@pytest.mark.model
def test_default_model_encodes_as_transformers_does(default_codec: Codec) -> None:
    for text, ids in recorded("smollm2")["cases"]:
        assert default_codec.encode(text).tolist() == ids, text


@pytest.mark.model
def test_default_model_ends_at_its_chat_mark_and_wants_no_bos(default_codec: Codec) -> None:
    assert default_codec.stop_tokens == {2}
    assert default_codec.bos_id is None
    assert default_codec.encode("a").tolist() != []


@pytest.mark.model
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cc", "Cs", "Co", "Cn"])))
def test_default_model_decodes_what_it_encoded(default_codec: Codec, text: str) -> None:
    ids = default_codec.encode(text)
    rare = {"\U00040000", "\U000e0001"}  # planes whose lead bytes the vocabulary lacks
    if all(char < min(rare) for char in text):
        assert default_codec.decode(ids) == text
    assert len(ids) >= default_codec.min_tokens(text)


def test_sentence_pieces_encode_as_the_library_that_trained_them() -> None:
    codec = Codec(sentence_pieces())
    for text, ids in recorded("sentencepiece")["cases"]:
        if "<s>" not in text:  # there control tokens are never read from text
            assert codec.encode(text).tolist() == ids, text


def test_sentence_pieces_decode_to_the_text_after_the_space_in_front() -> None:
    codec = Codec(sentence_pieces())
    for text, ids in recorded("sentencepiece")["cases"]:
        assert codec.decode(ids) == (" " + text.replace("\u2581", " ") if text else "")


def test_space_goes_in_front_of_text_and_after_control_tokens_only() -> None:
    codec = Codec(sentence_pieces())
    word = codec.encode("the").tolist()
    assert codec.encode("<s>the</s>the").tolist() == [1, *word, 2, *word]
    assert Codec(sentence_pieces(add_space_prefix=False)).encode(" the").tolist() == word


@given(text=st.text())
def test_bytes_round_trip(text: str) -> None:
    codec = byte_codec()
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert codec.decode(ids.tolist()) == text
    assert not ids.flags.writeable
    assert len(ids) >= codec.min_tokens(text)


@given(ids=st.lists(st.integers(0, 258)), stop=st.lists(st.text(min_size=1), max_size=2))
def test_streamed_ids_read_as_they_decode_at_once(ids: Sequence[int], stop: list[str]) -> None:
    codec = byte_codec()
    detokenizer = codec.detokenizer(())
    assert "".join(detokenizer.push([i])[0] for i in ids) + detokenizer.finish() == codec.decode(
        ids
    )


def test_control_tokens_are_read_from_prompts_and_not_shown_in_text() -> None:
    codec = byte_codec()
    ids = codec.encode("<|start|>a<|end|><|pad")
    assert ids[:3].tolist() == [START, ord("a") + 3, END]
    assert PAD not in ids
    assert codec.decode(ids) == "a<|pad"


def test_escape_keeps_control_text_from_being_read() -> None:
    codec = byte_codec()
    ids = codec.encode("<|start|><\uf8ff|start|>", escape="\uf8ff")
    assert ids[0] == START
    assert codec.decode(ids) == "<|start|>"
    assert START not in ids[1:]


def test_user_defined_token_is_read_whole_and_shown() -> None:
    data = byte_tokens([b"<think>"])
    codec = Codec(replace(data, types=[*data.types[:-1], 4], tokens=[*data.tokens[:-1], "<think>"]))
    ids = codec.encode("a<think>b").tolist()
    assert ids == [ord("a") + 3, FIRST_PIECE, ord("b") + 3]
    assert codec.decode(ids) == "a<think>b"


def test_bos_comes_first_and_once_where_the_model_wants_it() -> None:
    codec = Codec(replace(byte_tokens(), add_bos=True))
    assert codec.encode("a").tolist() == [START, ord("a") + 3]
    assert codec.encode("<|start|>a").tolist() == [START, ord("a") + 3]
    assert codec.encode("").tolist() == [START]


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "ab 123  c", ["ab", " 123", " ", " c"]),
        ("smollm", "ab 123  c", ["ab", " ", "1", "2", "3", " ", " c"]),
        ("llama-bpe", "ab 1234\n\nIT'S", ["ab", " ", "123", "4", "\n\n", "IT", "'S"]),
        ("qwen2", "ab 12\n", ["ab", " ", "1", "2", "\n"]),
    ],
)
def test_text_is_cut_by_the_named_rule_before_merging(
    name: str, text: str, pieces: list[str]
) -> None:
    merges, tokens = [], []
    letters = str.maketrans({" ": "\u0120", "\n": "\u010a"})
    for piece in sorted(set(pieces)):
        written = piece.translate(letters)
        for end in range(2, len(written) + 1):
            merges.append(f"{written[: end - 1]} {written[end - 1]}")
            tokens.append(written[:end])
    across = text.translate(letters)
    for a, b in pairwise(across):
        if a + b not in tokens:
            merges.append(f"{a} {b}")
            tokens.append(a + b)
    data = byte_tokens()
    data = replace(
        data,
        pre_tokenizer=name,
        merges=merges,
        tokens=[*data.tokens, *tokens],
        types=data.types + [1] * len(tokens),
    )
    codec = Codec(data)
    assert [codec.decode([i]) for i in codec.encode(text)] == pieces


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "bert"}, "kind `bert`"),
        ({"pre_tokenizer": "klingon"}, "pre-tokenizer `klingon`"),
        ({"types": [1]}, "259 tokens and 1 token types"),
        ({"tokens": [], "types": []}, "at least one"),
        ({"eos_id": 999}, "eos token id 999"),
        ({"merges": ["a"]}, "merge 0"),
        ({"merges": ["a b"]}, "do not fit its vocabulary"),
        ({"model": "llama"}, "0 scores"),
        ({"model": "llama", "scores": [0.0] * 259}, "no unknown token"),
    ],
)
def test_vocabulary_that_cannot_be_used_is_said(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(WeightsError, match=says):
        Codec(replace(byte_tokens(), **changes))
