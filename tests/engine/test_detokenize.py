"""Incremental text is exact: no half characters, no leaked stop strings, nothing lost (FR-07, FR-08)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.detokenize import Detokenizer, StopStrings
from tests.reference.detokenize import decode_and_cut


def stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> list[str]:
    """What is sent for each piece, and last what the end flushes."""
    detokenizer = Detokenizer(pieces, stops)
    sent = [detokenizer.push([token])[0] for token in range(len(pieces))]
    return [*sent, detokenizer.finish()]


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """`data` in pieces, cut at the given positions (taken modulo its length)."""
    edges = [0, *sorted(position % (len(data) + 1) for position in at), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def test_stop_string_over_three_tokens_never_leaks() -> None:
    detokenizer = Detokenizer([b"the ", b"lan", b"ter", b"n", b" glows"], ("lantern",))
    assert [detokenizer.push([token]) for token in range(4)] == [
        ("the ", False),
        ("", False),
        ("", False),
        ("", True),
    ]
    assert detokenizer.push([4]) == ("", True)
    assert detokenizer.finish() == ""


def test_text_held_for_a_stop_string_that_does_not_come_is_sent() -> None:
    assert stream([b"the ", b"lan", b"ter", b"race"], ("lantern",)) == [
        "the ",
        "",
        "",
        "lanterrace",
        "",
    ]


def test_start_of_a_stop_string_at_the_end_of_the_answer_is_sent() -> None:
    assert stream([b"the ", b"lan"], ("lantern",)) == ["the ", "", "lan"]


def test_held_text_shrinks_to_the_longest_end_that_can_still_match() -> None:
    assert stream([b"aab", b"aab", b"x"], ("aabaac",)) == ["", "aab", "aabx", ""]
    assert stream([b"aab", b"aab"], ("aabaac",)) == ["", "aab", "aab"]


def test_stop_string_that_ends_first_wins_and_the_longest_of_those_that_end_together() -> None:
    assert "".join(stream([b"xabcdy"], ("abcd", "bc"))) == "xa"
    assert "".join(stream([b"xabcy"], ("bc", "abc", "c"))) == "x"


@pytest.mark.parametrize(
    ("pieces", "sent"),
    [
        ([b"\xf0\x9f", b"\x98\x80"], ["", "\N{GRINNING FACE}", ""]),
        ([b"\xe6", b"\xbc\xa2"], ["", "\u6f22", ""]),
        ([b"\xe6", b"\xbc", b"\xa2!"], ["", "", "\u6f22!", ""]),
        ([b"a\xf0\x9f", b"b"], ["a", "\ufffdb", ""]),
    ],
)
def test_character_split_over_tokens_is_sent_whole(pieces: list[bytes], sent: list[str]) -> None:
    assert stream(pieces) == sent


def test_half_a_character_at_the_end_is_flushed_once() -> None:
    assert stream([b"ok ", b"\xf0\x9f", b"\x98"]) == ["ok ", "", "", "\ufffd"]


def test_flushed_half_character_can_complete_a_stop_string() -> None:
    assert stream([b"ok", b"\xf0\x9f"], ("k\ufffd",)) == ["o", "", ""]


def test_nothing_follows_the_end() -> None:
    detokenizer = Detokenizer([b"a"])
    assert detokenizer.push([0]) == ("a", False)
    assert detokenizer.finish() == ""
    assert detokenizer.push([0]) == ("", True)
    assert detokenizer.finish() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="may not be empty"):
        StopStrings(["a", ""])


STOPS = st.lists(st.text(alphabet="ab\u00e9\N{GRINNING FACE}", min_size=1, max_size=5), max_size=4)
TEXTS = st.text(alphabet="ab\u00e9\N{GRINNING FACE}c", max_size=40).map(str.encode)


@given(data=st.one_of(TEXTS, st.binary(max_size=24)), stops=STOPS, at=st.lists(st.integers(0, 99)))
def test_any_cutting_adds_up_to_decoding_at_once(
    data: bytes, stops: list[str], at: list[int]
) -> None:
    pieces = cut(data, at)
    detokenizer = Detokenizer(pieces, tuple(stops))
    sent = [detokenizer.push([token]) for token in range(len(pieces))]
    assert (
        "".join(text for text, _ in sent) + detokenizer.finish()
        == decode_and_cut(data, tuple(stops))[0]
    )


@given(text=st.text(alphabet="ab", max_size=60), stops=STOPS, at=st.lists(st.integers(0, 99)))
def test_stop_is_reported_with_the_piece_that_completes_it(
    text: str, stops: list[str], at: list[int]
) -> None:
    pieces = cut(text.encode(), at)
    detokenizer = Detokenizer(pieces, tuple(stops))
    for token in range(len(pieces)):
        _, stopped = detokenizer.push([token])
        so_far = b"".join(pieces[: token + 1])
        assert stopped == decode_and_cut(so_far, tuple(stops))[1]


@given(text=st.text(max_size=40), stops=STOPS, at=st.lists(st.integers(0, 99)))
def test_several_tokens_at_once_equal_one_by_one(
    text: str, stops: list[str], at: list[int]
) -> None:
    pieces = cut(text.encode(), at)
    at_once = Detokenizer(pieces, tuple(stops))
    assert at_once.push(range(len(pieces)))[0] + at_once.finish() == "".join(
        stream(pieces, tuple(stops))
    )


@given(
    data=st.text("ab\u00fc", max_size=12),
    at=st.lists(st.integers(0, 99), max_size=6),
    stop=st.text("ab\u00fc", min_size=1, max_size=3),
)
def test_included_stop_string_ends_the_text_and_is_part_of_it(
    data: str, at: list[int], stop: str
) -> None:
    pieces = cut(data.encode(), at)
    detokenizer = Detokenizer(pieces, (stop,), include_stop=True)
    text = "".join([detokenizer.push([token])[0] for token in range(len(pieces))])
    text += detokenizer.finish()
    found = data.find(stop)
    assert text == (data if found < 0 else data[: found + len(stop)])


@pytest.mark.parametrize("min_tokens", range(5))
@pytest.mark.parametrize("at_once", [False, True])
def test_stop_strings_are_not_looked_for_before_the_least_number_of_tokens(
    min_tokens: int, at_once: bool
) -> None:
    pieces = [b"a", b"\xc3", b"\xbc", b"a", b"b"]
    detokenizer = Detokenizer(pieces, ("a",), min_tokens=min_tokens)
    if at_once:
        text, stopped = detokenizer.push(range(5))
    else:
        said = [detokenizer.push([token]) for token in range(5)]
        text, stopped = "".join(part for part, _ in said), said[-1][1]
    if min_tokens == 0:
        assert (text, stopped) == ("", True)
    elif min_tokens < 4:
        assert (text, stopped) == ("a\u00fc", True)
    else:
        assert (text, stopped) == ("a\u00fcab", False)
