"""One streamed answer as it arrives: server-sent events to times, token counts and how it ended. Sans IO: bytes and times come in.

The first token is the first event that carries text, or that ends a choice; the last token is the last such event. Tokens are counted by the server's
usage event. Knows no connection and no clock.
"""

from typing import Final

import msgspec
from msgspec import Struct

NEVER: Final = -1


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class Usage(Struct):
    """What the server counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: object = None
    """Of any shape: what a server adds here must not spoil the rest."""

    @property
    def cached(self) -> int | None:
        """Prompt tokens that the server's prefix cache held; None where it does not say."""
        details = self.prompt_tokens_details
        found = details.get("cached_tokens") if isinstance(details, dict) else None
        if type(found) is not int or not 0 <= found <= self.prompt_tokens:
            return None
        return found


class _Event(Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: object = None


_DECODER: Final = msgspec.json.Decoder(_Event)


class Answer:
    """Fed with the body of a streamed answer."""

    def __init__(self) -> None:
        self.first_ns = NEVER
        self.last_ns = NEVER
        self.num_events = 0
        """With text or an end."""
        self.usage: Usage | None = None
        self.finished = False
        """A choice said why it ended."""
        self.complete = False
        """`[DONE]` came."""
        self.failure: str | None = None
        """What kind of failure the stream reported, or is."""
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, body: bytes, now: int) -> int:
        """Takes in bytes that came at `now`; how many events with text or an end were among them."""
        before = self.num_events
        lines = (self._rest + body).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                data = b"\n".join(self._data)
                self._data.clear()
                self._event(data, now)
        return self.num_events - before

    def _event(self, data: bytes, now: int) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        try:
            event = _DECODER.decode(data)
        except msgspec.DecodeError:
            self.failure = self.failure or "not an event of this API"
            return
        if event.error is not None:
            self.failure = self.failure or "error in the stream"
        if event.usage is not None:
            self.usage = event.usage
        says = False
        for choice in event.choices:
            delta = choice.delta
            if choice.finish_reason is not None:
                self.finished = says = True
            if choice.text or (delta and (delta.content or delta.reasoning_content)):
                says = True
        if says:
            self.num_events += 1
            if self.first_ns == NEVER:
                self.first_ns = now
            self.last_ns = now
