"""A request body to what the engine takes: token ids, sampling, limits. Every refusal names the field.

Knows both kinds of body and the engine's codec; knows nothing of connections or of how answers look.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import anyio.to_thread
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from engine.core.errors import RequestError
from engine.executor import SamplingParams
from engine.requests import Generation
from gateway.config import GatewayConfig
from gateway.engine import Engine, Served
from gateway.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    ContentPart,
    GenerationFields,
)

Ids = NDArray[np.int32]

COMPLETION_MAX_TOKENS: Final = 16
"""What `/v1/completions` generates when the client sets no limit, as OpenAI documents it."""
THREAD_FROM_CHARS: Final = 16_384
"""Longer texts are encoded in a worker thread, so that other streams do not wait (16 Ki characters take about 10 ms)."""
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles that clients send, and what the template is told."""
REFUSED_IN_MESSAGES: Final = ("tool_calls", "function_call", "audio")


class Ask(Struct, frozen=True, eq=False):
    """What a body asks of the engine."""

    generation: Generation
    names: Mapping[str, str]
    """What the body calls the fields that the engine knows as `prompt` and `max_tokens`."""

    def named(self, error: RequestError) -> RequestError:
        """The engine's refusal, with the field named as the client wrote it."""
        param = None if error.param is None else self.names.get(error.param, error.param)
        return RequestError(error.message, param=param, code=error.reason)


async def completion_ask(body: CompletionRequest, served: Served, config: GatewayConfig) -> Ask:
    """What `/v1/completions` asks of the engine.

    Raises:
        RequestError: a field holds what cannot be served.
    """
    engine, codec = served.engine, served.codec
    check_model(body.model, engine)
    prompt, path = _one_prompt(body.prompt)
    if not prompt:
        raise RequestError(
            "`prompt` is empty; send text or token ids", param="prompt", code="empty_prompt"
        )
    if isinstance(prompt, str):
        _check_length(codec.min_tokens(prompt), engine, path, at_least=True)
        ids = await _off_loop(len(prompt), lambda: codec.encode(prompt))
    else:
        _check_length(len(prompt), engine, path)
        ids = _checked_ids(prompt, path, codec.vocab_size)
    names = {"prompt": path, "max_tokens": "max_tokens"}
    limit = body.max_tokens
    if limit is None:
        limit = min(COMPLETION_MAX_TOKENS, max(1, engine.max_context - len(ids)))
    return _ask(body, engine, config, ids, limit, names)


async def chat_ask(body: ChatRequest, served: Served, config: GatewayConfig) -> Ask:
    """What `/v1/chat/completions` asks of the engine.

    Raises:
        RequestError: a field holds what cannot be served.
    """
    engine = served.engine
    check_model(body.model, engine)
    if not body.messages:
        raise RequestError(
            "`messages` is empty; send at least one message", param="messages", code="empty_prompt"
        )
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(body.messages)]
    size = sum(len(text) for message in messages for text in message.values())
    floor = sum(served.codec.min_tokens(message["content"]) for message in messages)
    _check_length(floor, engine, "messages", at_least=True)
    ids = await _off_loop(size, lambda: served.chat.encode(messages))
    limit, limit_name = body.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, limit_name = body.max_tokens, "max_tokens"
    elif body.max_tokens not in (None, limit):
        raise RequestError(
            "`max_completion_tokens` and `max_tokens` differ; send one of them",
            param="max_completion_tokens",
        )
    names = {"prompt": "messages", "max_tokens": limit_name}
    return _ask(body, engine, config, ids, limit, names)


def check_model(name: str | None, engine: Engine) -> None:
    """Raises `RequestError` unless `name` is what is served, or absent."""
    if name is not None and name != engine.model_name:
        raise RequestError(
            f"the model `{name[:200]}` is not served here; `{engine.model_name}` is",
            param="model",
            code="model_not_found",
        )


def _ask(
    body: GenerationFields,
    engine: Engine,
    config: GatewayConfig,
    ids: Ids,
    limit: int | None,
    names: Mapping[str, str],
) -> Ask:
    _check_length(len(ids), engine, names["prompt"])
    room = engine.max_context - len(ids)
    if limit is not None and limit > room:
        name = names["max_tokens"]
        raise RequestError(
            f"`{name}` is {limit} and the prompt has {len(ids)} tokens, but the model's context is"
            f" {engine.max_context} tokens; ask for at most {room}",
            param=name,
            code="context_length_exceeded",
        )
    generation = Generation(
        prompt=ids,
        max_tokens=limit,
        sampling=_sampling(body),
        stop=_stop(body.stop, config),
        ignore_eos=bool(body.ignore_eos),
    )
    return Ask(generation, names)


def _sampling(body: GenerationFields) -> SamplingParams:
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    if top_p == 0.0:  # no probability mass but the best token's: the same as greedy
        temperature, top_p = 0.0, 1.0
    seed = secrets.randbits(63) if body.seed is None else body.seed & (2**63 - 1)
    return SamplingParams(
        temperature=temperature, top_p=top_p, top_k=max(body.top_k or 0, 0), seed=seed
    )


def _stop(stop: str | list[str] | None, config: GatewayConfig) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > config.max_stop_strings:
        raise RequestError(
            f"`stop` has {len(strings)} strings; at most {config.max_stop_strings} are allowed",
            param="stop",
        )
    for i, string in enumerate(strings):
        if not 1 <= len(string) <= config.max_stop_chars:
            path = "stop" if isinstance(stop, str) else f"stop[{i}]"
            raise RequestError(
                f"`{path}` has {len(string)} characters; a stop string has 1 to {config.max_stop_chars}",
                param=path,
            )
    return tuple(strings)


def _one_prompt(prompt: str | list[int | str | list[int]]) -> tuple[str | Sequence[int], str]:
    """The only prompt of a body, and its path."""
    if isinstance(prompt, str):
        return prompt, "prompt"
    numbers = [item for item in prompt if isinstance(item, int)]
    if len(numbers) == len(prompt):
        return numbers, "prompt"
    if len(prompt) == 1 and not isinstance(prompt[0], int):
        return prompt[0], "prompt[0]"
    if numbers:
        raise RequestError(
            "`prompt` mixes token ids with other prompts; send text, or a list of token ids only",
            param="prompt",
        )
    raise RequestError(
        f"`prompt` holds {len(prompt)} prompts; this server takes one a request",
        param="prompt",
        code="unsupported_parameter",
    )


def _checked_ids(prompt: Sequence[int], path: str, vocab_size: int) -> Ids:
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


def _check_length(num_tokens: int, engine: Engine, path: str, *, at_least: bool = False) -> None:
    """Raises unless the prompt leaves room for a token of answer."""
    if num_tokens >= engine.max_context:
        count = f"at least {num_tokens}" if at_least else str(num_tokens)
        raise RequestError(
            f"`{path}` has {count} tokens, but the model's context is {engine.max_context} tokens for prompt and"
            " answer together",
            param=path,
            code="context_length_exceeded",
        )


async def _off_loop(size: int, work: Callable[[], Ids]) -> Ids:
    """Runs an encoding here if it is short, else in a worker thread."""
    if size < THREAD_FROM_CHARS:
        return work()
    return await anyio.to_thread.run_sync(work)
