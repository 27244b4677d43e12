"""Tokens to text while they are generated: whole characters only, and never a part of a stop string.

Knows the bytes of each token and nothing of models, requests or transports. Two machines in a row, both exact under any
cutting of the input: a UTF-8 decoder that holds back an incomplete character, and a matcher (Aho-Corasick) that holds back
the longest end of the text which a stop string could still grow from.

Which match counts does not depend on how the text arrives: the one that ends first; of those that end together, the longest.
"""

import codecs
import re
from collections import deque
from collections.abc import Sequence
from functools import lru_cache


class StopStrings:
    """A compiled set of stop strings, shared by all streams that use the same ones. Immutable after construction.

    State 0 is "nothing held back". State s stands for the text `_words[s][:depth[s]]`: the longest end of the input that
    begins a stop string. Source: Aho and Corasick, "Efficient string matching", CACM 18(6), 1975.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """Builds the automaton, O(total length).

        Raises:
            ValueError: one of `strings` is empty.
        """
        if not all(strings):
            raise ValueError("a stop string may not be empty")
        self._next: list[dict[str, int]] = [{}]
        self._words = [""]
        self._depth = [0]
        self._match = [0]
        for word in strings:
            self._insert(word)
        self._fail = [0] * len(self._next)
        self._link()
        firsts = "".join(re.escape(char) for char in sorted(self._next[0]))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def _insert(self, word: str) -> None:
        state = 0
        for depth, char in enumerate(word, start=1):
            after = self._next[state].get(char)
            if after is None:
                after = len(self._next)
                self._next.append({})
                self._words.append(word)
                self._depth.append(depth)
                self._match.append(0)
                self._next[state][char] = after
            state = after
        self._match[state] = len(word)

    def _link(self) -> None:
        """Sets where to go on after a mismatch, level by level, and the longest match that ends in each state."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, after in self._next[state].items():
                queue.append(after)
                self._fail[after] = self._step(self._fail[state], char)
            self._match[state] = max(self._match[state], self._match[self._fail[state]])

    def _step(self, state: int, char: str) -> int:
        while True:
            after = self._next[state].get(char)
            if after is not None:
                return after
            if state == 0:
                return 0
            state = self._fail[state]

    def feed(self, state: int, text: str, *, include: bool = False) -> tuple[int, str, bool]:
        """Reads `text` after whatever `state` holds back: (new state, text that is safe to send, whether a stop matched).

        `include`: the text of the match may be sent, too.

        After a match the sent text is complete and the state is of no further use. O(len(text)) amortised over a stream.
        """
        if self._first is None:
            return state, text, False
        held, at = state, 0
        while at < len(text):
            if state == 0:
                found = self._first.search(text, at)
                if found is None:
                    break
                at = found.start()
            state = self._step(state, text[at])
            at += 1
            if self._match[state]:
                end = self._depth[held] + at - (0 if include else self._match[state])
                return 0, self._prefix(held, text, end), True
        end = self._depth[held] + len(text) - self._depth[state]
        return state, self._prefix(held, text, end), False

    def held(self, state: int) -> str:
        """The text that `state` holds back."""
        return self._words[state][: self._depth[state]]

    def _prefix(self, held: int, text: str, end: int) -> str:
        """The first `end` characters of what `held` holds back followed by `text`."""
        depth = self._depth[held]
        if end <= depth:
            return self._words[held][:end]
        return self._words[held][:depth] + text[: end - depth]


@lru_cache(maxsize=32)
def compile_stops(strings: tuple[str, ...]) -> StopStrings:
    """The automaton of `strings`; clients repeat their stop lists, so the last 32 lists are kept: the longest that are allowed take 1.3 MB each."""
    return StopStrings(strings)


class Detokenizer:
    """One stream's way from token ids to text that may be sent.

    The concatenation of all that `push` and `finish` return equals the bytes of all pushed tokens decoded at once (invalid
    UTF-8 as U+FFFD), cut before the first stop string.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        stop: tuple[str, ...] = (),
        *,
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Sets up.

        Args:
            pieces: `pieces[i]` are the bytes of token i, empty for tokens that are never shown.
            stop: as in `StopStrings`.
            include_stop: the text ends after the stop string rather than before it.
            min_tokens: stop strings are not looked for in the text of the first so many tokens.
        """
        self._pieces = pieces
        self._include = include_stop
        self._quiet = min_tokens
        self._stops = compile_stops(stop)
        self._state = 0
        self._bytes = b""
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> tuple[str, bool]:
        """Adds tokens: (text that may be sent now, whether a stop string was completed). Nothing comes after a stop.

        Raises:
            IndexError: a token is not in the vocabulary.
        """
        if self.stopped:
            return "", True
        pieces = self._pieces
        if self._quiet:
            first, tokens = tokens[: self._quiet], tokens[self._quiet :]
            self._quiet -= len(first)
            text = self._characters(b"".join([pieces[t] for t in first]), final=False)
            if not tokens:
                return text, False
            rest, stopped = self.push(tokens)
            return text + rest, stopped
        data = pieces[tokens[0]] if len(tokens) == 1 else b"".join([pieces[t] for t in tokens])
        return self._decode(data, final=False), self.stopped

    def finish(self) -> str:
        """What was held back when the tokens ended: half a character as U+FFFD, and the start of a stop string as it is."""
        if self.stopped:
            return ""
        text = self._decode(b"", final=True)
        if not self.stopped:
            text += self._stops.held(self._state)
            self._state = 0
        self.stopped = True
        return text

    def _decode(self, data: bytes, *, final: bool) -> str:
        text = self._characters(data, final=final)
        self._state, text, self.stopped = self._stops.feed(self._state, text, include=self._include)
        return text

    def _characters(self, data: bytes, *, final: bool) -> str:
        if self._bytes:
            data = self._bytes + data
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._bytes = data[used:]
        return text
