"""Reads a whole event stream by the letter and refuses what a lenient client would forgive."""

import json
from typing import Any

DONE = "[DONE]"


def read_events(raw: bytes) -> list[Any]:
    """The JSON of each event, or `DONE`. Comments are left out.

    Raises:
        AssertionError: a line end that is not LF, a field that is not `data`, more than one line an event, an unfinished event, or
            anything after `[DONE]`.
    """
    text = raw.decode("utf-8", errors="strict")
    assert "\r" not in text, "a CR in the stream"
    assert text == "" or text.endswith("\n\n"), f"an unfinished event: {text[-80:]!r}"
    events: list[Any] = []
    for block in text.split("\n\n")[:-1]:
        assert "\n" not in block, f"more than one line in an event: {block!r}"
        if block.startswith(":"):
            continue
        assert block.startswith("data: "), f"not a data line: {block!r}"
        assert events[-1:] != [DONE], f"an event after [DONE]: {block!r}"
        data = block.removeprefix("data: ")
        events.append(DONE if data == DONE else json.loads(data))
    return events


def text_of(events: list[Any]) -> str:
    """The concatenated text of the first choice, of either endpoint."""
    parts = []
    for event in events:
        if event == DONE or "error" in event:
            continue
        for choice in event["choices"]:
            parts.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(parts)


def finishes(events: list[Any]) -> list[str]:
    """The finish reasons, in order of arrival."""
    return [
        choice["finish_reason"]
        for event in events
        if event != DONE and "error" not in event
        for choice in event["choices"]
        if choice["finish_reason"] is not None
    ]
