"""How the two endpoints write an answer: whole, or as chunks. Pure: deltas in, bodies out.

Two shapes of one interface, so that handlers and streams are written once.
"""

from typing import Protocol

from msgspec import UNSET, Struct, UnsetType

from engine.requests import FinishReason
from gateway.schemas import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Completion,
    CompletionChoice,
    FinishText,
    MessageDelta,
    Usage,
)

ChunkUsage = Usage | None | UnsetType
"""Of a chunk: counts, null where they come later, or no field at all."""


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

    def opening(self, usage: ChunkUsage) -> Struct | None:
        """What a stream begins with, before there is text."""
        ...

    def chunk(self, text: str, finish: FinishReason | None, usage: ChunkUsage) -> Struct:
        """The next part of the answer."""
        ...

    def usage_chunk(self, usage: Usage) -> Struct:
        """Token counts, with no choices."""
        ...

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Struct:
        """The answer at once."""
        ...


class CompletionAnswer(Struct, frozen=True):
    """Answers of `/v1/completions`."""

    id: str
    created: int
    model: str

    def opening(self, usage: ChunkUsage) -> Struct | None:
        """Nothing: text comes first."""
        return None

    def chunk(self, text: str, finish: FinishReason | None, usage: ChunkUsage) -> Struct:
        """A chunk of text."""
        choice = CompletionChoice(index=0, text=text, finish_reason=finish_text(finish))
        return Completion(self.id, self.created, self.model, (choice,), usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        """Token counts, with no choices."""
        return Completion(self.id, self.created, self.model, (), usage)

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Struct:
        """The same shape as a chunk."""
        return self.chunk(text, finish, usage)


class ChatAnswer(Struct, frozen=True):
    """Answers of `/v1/chat/completions`."""

    id: str
    created: int
    model: str

    def opening(self, usage: ChunkUsage) -> Struct | None:
        """The role, with empty content."""
        return self._chunk(MessageDelta(role="assistant", content=""), None, usage)

    def chunk(self, text: str, finish: FinishReason | None, usage: ChunkUsage) -> Struct:
        """A chunk of the message; the last one may have no content."""
        return self._chunk(MessageDelta(content=text or UNSET), finish_text(finish), usage)

    def usage_chunk(self, usage: Usage) -> Struct:
        """Token counts, with no choices."""
        return ChatChunk(self.id, self.created, self.model, (), usage)

    def whole(self, text: str, finish: FinishReason, usage: Usage) -> Struct:
        """The message."""
        reason = finish_text(finish)
        assert reason is not None
        choice = ChatChoice(index=0, message=AssistantMessage(text), finish_reason=reason)
        return ChatCompletion(self.id, self.created, self.model, (choice,), usage)

    def _chunk(
        self, delta: MessageDelta, finish: FinishText | None, usage: ChunkUsage
    ) -> ChatChunk:
        choice = ChatChunkChoice(index=0, delta=delta, finish_reason=finish)
        return ChatChunk(self.id, self.created, self.model, (choice,), usage)
