"""Prompts and messages of a body to token ids, each refusal naming the place in the body.

Knows the codec and the chat template; knows nothing of sampling, nor of what becomes of the ids.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import anyio.to_thread
import numpy as np
from numpy.typing import NDArray

from engine.core.errors import RequestError
from gateway.schemas import ROLES, ChatMessage, ContentPart
from gateway.terms import Terms

Ids = NDArray[np.int32]
Result = TypeVar("Result")

THREAD_FROM_CHARS: Final = 16_384
"""Longer texts are encoded in a worker thread, so that other streams do not wait (16 Ki characters take about 10 ms)."""
REFUSED_IN_MESSAGES: Final = ("tool_calls", "function_call", "audio")


def prompts_of(prompt: str | list[int | str | list[int]]) -> list[tuple[str | Sequence[int], str]]:
    """The prompts of a body, each with its path."""
    if isinstance(prompt, str):
        return [(prompt, "prompt")]
    numbers = [item for item in prompt if isinstance(item, int)]
    if len(numbers) == len(prompt):
        return [(numbers, "prompt")]
    if numbers:
        raise RequestError(
            "`prompt` mixes token ids with other prompts; send text, or a list of token ids only",
            param="prompt",
        )
    return [(item, f"prompt[{i}]") for i, item in enumerate(prompt) if not isinstance(item, int)]


async def prompt_ids(
    prompt: str | Sequence[int], path: str, terms: Terms, *, beside: int = 0
) -> Ids:
    """[num_tokens] ids of one prompt; `beside` characters of others were encoded before, for the same body.

    Raises:
        RequestError: it is empty, too long, or has ids that the model does not know.
    """
    codec = terms.served.codec
    if not prompt:
        raise RequestError(
            f"`{path}` is empty; send text or token ids", param=path, code="empty_prompt"
        )
    if isinstance(prompt, str):
        check_length(codec.min_tokens(prompt), terms, path, at_least=True)
        return await text_ids(prompt, terms, beside=beside)
    check_length(len(prompt), terms, path)
    return checked_ids(prompt, path, codec.vocab_size)


async def text_ids(text: str, terms: Terms, *, beside: int = 0) -> Ids:
    """[num_tokens] ids of a text; `beside`: as in `prompt_ids`."""
    return await off_loop(len(text) + beside, lambda: terms.served.codec.encode(text))


async def chat_ids(messages: Sequence[ChatMessage], terms: Terms) -> Ids:
    """The prompt after which the model writes the next message.

    Raises:
        RequestError: a message cannot be served, or all are too long.
    """
    given = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    size = sum(len(text) for message in given for text in message.values())
    floor = sum(terms.served.codec.min_tokens(message["content"]) for message in given)
    check_length(floor, terms, "messages", at_least=True)
    return await off_loop(size, lambda: terms.served.chat.encode(given))


def checked_ids(prompt: Sequence[int], path: str, vocab_size: int) -> Ids:
    """The ids as an array, read-only.

    Raises:
        RequestError: one is not in the vocabulary.
    """
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        i, token = next((i, t) for i, t in enumerate(prompt) if not 0 <= t < vocab_size)
        raise RequestError(
            f"`{path}[{i}]` is {token}; token ids of this model are 0 to {vocab_size - 1}",
            param=f"{path}[{i}]",
        )
    ids = np.array(prompt, np.int32)
    ids.flags.writeable = False
    return ids


def _message(message: ChatMessage, path: str) -> dict[str, str]:
    if message.role not in ROLES:
        raise RequestError(
            f"`{path}.role` is `{message.role[:50]}`; it must be one of {', '.join(ROLES)}",
            param=f"{path}.role",
        )
    for name in REFUSED_IN_MESSAGES:
        if getattr(message, name):
            raise RequestError(
                f"`{path}.{name}` is not supported by this server; send text only",
                param=f"{path}.{name}",
                code="unsupported_parameter",
            )
    if message.content is None:
        raise RequestError(
            f"`{path}.content` is missing; send a string or a list of text parts",
            param=f"{path}.content",
        )
    given = {"role": ROLES[message.role], "content": _text(message.content, f"{path}.content")}
    return given if message.name is None else given | {"name": message.name}


def _text(content: str | list[ContentPart], path: str) -> str:
    """The text of a message; parts are joined by line feeds."""
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        if part.type != "text":
            raise RequestError(
                f"`{path}[{i}].type` is `{part.type[:50]}`; this model reads parts of type `text` only",
                param=f"{path}[{i}].type",
                code="unsupported_parameter",
            )
        if part.text is None:
            raise RequestError(
                f"`{path}[{i}].text` is missing; a part of type `text` needs it",
                param=f"{path}[{i}].text",
            )
        texts.append(part.text)
    return "\n".join(texts)


def check_length(num_tokens: int, terms: Terms, path: str, *, at_least: bool = False) -> None:
    """Raises `RequestError` unless the prompt leaves room for a token of answer."""
    if num_tokens >= terms.max_context:
        count = f"at least {num_tokens}" if at_least else str(num_tokens)
        raise RequestError(
            f"`{path}` has {count} tokens, but {terms.context_words} for prompt and answer together",
            param=path,
            code="context_length_exceeded",
        )


async def off_loop(size: int, work: Callable[[], Result]) -> Result:
    """Runs work on `size` characters or tokens here if it is short, else in a worker thread."""
    if size < THREAD_FROM_CHARS:
        return work()
    return await anyio.to_thread.run_sync(work)
