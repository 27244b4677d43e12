"""How the two endpoints write an answer: whole, or as chunks. Pure: deltas in, bodies out.

Two shapes of one interface, so that handlers and streams are written once.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from engine.executor import TokenLogprobs
from engine.requests import FinishReason
from gateway.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    FinishText,
    MessageDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)

ChunkUsage = Usage | None | UnsetType
"""Of a chunk: counts, null where they come later, or no field at all."""
Said = Sequence[tuple[int, TokenLogprobs]]
"""Tokens with what is known of them."""


class Part(Struct, frozen=True):
    """A choice, or the next part of one."""

    index: int
    text: str
    finish: FinishReason | None = None
    said: Said | None = None
    """None: nobody asked."""
    offset: int = 0
    """Characters of the texts of the tokens before."""


def finish_text(finish: FinishReason | None) -> FinishText | None:
    """The reason in OpenAI's words; only good ends have one."""
    match finish:
        case FinishReason.STOP:
            return "stop"
        case FinishReason.LENGTH:
            return "length"
        case _:
            return None


class Answer(Protocol):
    """Writes the bodies of one answer."""

    @property
    def id(self) -> str:
        """What clients call the answer."""
        ...

    def opening(self, index: int, usage: ChunkUsage) -> Struct | None:
        """What the stream of a choice begins with, before there is text."""
        ...

    def chunk(self, part: Part, usage: ChunkUsage) -> Struct:
        """The next part of a choice."""
        ...

    def usage_chunk(self, usage: Usage) -> Struct:
        """Token counts, with no choices."""
        ...

    def whole(self, parts: Sequence[Part], usage: Usage) -> Struct:
        """All choices at once."""
        ...


class CompletionAnswer(Struct, frozen=True):
    """Answers of `/v1/completions`."""

    id: str
    created: int
    model: str
    pieces: Sequence[bytes]
    """Bytes of each token."""

    def opening(self, index: int, usage: ChunkUsage) -> Struct | None:
        """Nothing: text comes first."""
        return None

    def chunk(self, part: Part, usage: ChunkUsage) -> Struct:
        """A chunk of text."""
        return Completion(self.id, self.created, self.model, (self._choice(part),), usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        """Token counts, with no choices."""
        return Completion(self.id, self.created, self.model, (), usage)

    def whole(self, parts: Sequence[Part], usage: Usage) -> Struct:
        """The same shape as a chunk."""
        return Completion(self.id, self.created, self.model, tuple(map(self._choice, parts)), usage)

    def _choice(self, part: Part) -> CompletionChoice:
        logprobs = None if part.said is None else self._logprobs(part.said, part.offset)
        return CompletionChoice(part.index, part.text, logprobs, finish_text(part.finish))

    def _logprobs(self, said: Said, offset: int) -> CompletionLogprobs:
        texts = [text_of(self.pieces, token) for token, _ in said]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        tops = [
            {
                text_of(self.pieces, top): value
                for top, value in zip(known.top_ids, known.top_logprobs, strict=True)
            }
            for _, known in said
        ]
        return CompletionLogprobs(texts, [known.logprob for _, known in said], tops, offsets)


class ChatAnswer(Struct, frozen=True):
    """Answers of `/v1/chat/completions`."""

    id: str
    created: int
    model: str
    pieces: Sequence[bytes]
    """Bytes of each token."""

    def opening(self, index: int, usage: ChunkUsage) -> Struct | None:
        """The role, with empty content."""
        delta = MessageDelta(role="assistant", content="")
        return self._chunk(ChatChunkChoice(index, delta), usage)

    def chunk(self, part: Part, usage: ChunkUsage) -> Struct:
        """A chunk of the message; the last one may have no content."""
        delta = MessageDelta(content=part.text or UNSET)
        choice = ChatChunkChoice(
            part.index, delta, self._logprobs(part.said), finish_text(part.finish)
        )
        return self._chunk(choice, usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        """Token counts, with no choices."""
        return ChatChunk(self.id, self.created, self.model, (), usage)

    def whole(self, parts: Sequence[Part], usage: Usage) -> Struct:
        """The messages."""
        choices = []
        for part in parts:
            reason = finish_text(part.finish)
            assert reason is not None
            message = AssistantMessage(part.text)
            choices.append(ChatChoice(part.index, message, reason, self._logprobs(part.said)))
        return ChatCompletion(self.id, self.created, self.model, tuple(choices), usage)

    def _chunk(self, choice: ChatChunkChoice, usage: ChunkUsage) -> ChatChunk:
        return ChatChunk(self.id, self.created, self.model, (choice,), usage)

    def _logprobs(self, said: Said | None) -> ChatLogprobs | None:
        if said is None:
            return None
        return ChatLogprobs(
            [
                TokenLogprob(
                    *self._named(token, known.logprob),
                    [
                        TopLogprob(*self._named(top, value))
                        for top, value in zip(known.top_ids, known.top_logprobs, strict=True)
                    ],
                )
                for token, known in said
            ]
        )

    def _named(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        return text_of(self.pieces, token), logprob, list(self.pieces[token])


def text_of(pieces: Sequence[bytes], token: int) -> str:
    """The text of one token by itself; bytes that are no characters as U+FFFD."""
    return pieces[token].decode("utf-8", "replace")
