"""A request body to what the engine takes: token ids, sampling, limits. Every refusal names the field.

Knows both kinds of body and the engine's codec; knows nothing of connections or of how answers look.
"""

import re
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
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
REFUSED_IN_MESSAGES: Final = ("tool_calls", "function_call", "audio")


class Ask(Struct, frozen=True, eq=False):
    """What a body asks of the engine: a generation for each of its prompts."""

    generations: tuple[Generation, ...]
    names: tuple[Mapping[str, str], ...]
    """For each: what the body calls the fields that the engine knows as `prompt` and `max_tokens`."""
    num_choices: int = 1
    """Choices of each prompt that are delivered: the best, where more are generated."""
    echoes: tuple[str, ...] = ()
    """What the text of each prompt's choices begins with."""

    def named(self, error: RequestError, place: int) -> RequestError:
        """The engine's refusal of generation `place`, with the field named as the client wrote it."""
        names = self.names[place]
        param = None if error.param is None else names.get(error.param, error.param)
        return RequestError(error.message, param=param, code=error.reason)


async def completion_ask(body: CompletionRequest, served: Served, config: GatewayConfig) -> Ask:
    """What `/v1/completions` asks of the engine.

    Raises:
        RequestError: a field holds what cannot be served.
    """
    engine, codec = served.engine, served.codec
    check_model(body.model, engine)
    num_choices = body.n or 1
    best_of = body.best_of or num_choices
    _check_best_of(body, num_choices, best_of)
    prompts = _prompts(body.prompt)
    if len(prompts) * best_of > config.max_choices:
        raise RequestError(
            f"the body asks for {len(prompts) * best_of} choices; at most {config.max_choices} are allowed",
            param="prompt" if best_of == 1 else "n",
        )
    generations, names, echoes = [], [], []
    for prompt, path in prompts:
        ids = await _prompt_ids(prompt, path, served)
        limit = body.max_tokens
        if limit is None:
            limit = min(COMPLETION_MAX_TOKENS, max(1, engine.max_context - len(ids)))
        name = {"prompt": path, "max_tokens": "max_tokens"}
        logprobs = body.logprobs
        if logprobs is None and best_of > num_choices:
            logprobs = 0
        generations.append(
            _generation(body, served, config, ids, limit, name, logprobs, sequences=best_of)
        )
        names.append(name)
        if body.echo:
            echoes.append(prompt if isinstance(prompt, str) else codec.decode(ids))
    return Ask(tuple(generations), tuple(names), num_choices, tuple(echoes))


def _check_best_of(body: CompletionRequest, num_choices: int, best_of: int) -> None:
    if best_of < num_choices:
        raise RequestError(
            f"`best_of` is {best_of} and `n` is {num_choices}; at least as many must be generated as are chosen",
            param="best_of",
        )
    if best_of > num_choices and body.stream:
        raise RequestError(
            "`best_of` above `n` cannot be streamed, because the best are known at the end; leave out one of both",
            param="best_of",
        )
    if body.echo and body.logprobs is not None:
        raise RequestError(
            "`echo` with `logprobs` is not supported, because prompts' log-probabilities are not computed;"
            " leave out one of both",
            param="echo",
            code="unsupported_parameter",
        )


async def text_ids(text: str, served: Served) -> Ids:
    """[num_tokens] ids of a text."""
    return await _off_loop(len(text), lambda: served.codec.encode(text))


async def _prompt_ids(prompt: str | Sequence[int], path: str, served: Served) -> Ids:
    engine, codec = served.engine, served.codec
    if not prompt:
        raise RequestError(
            f"`{path}` is empty; send text or token ids", param=path, code="empty_prompt"
        )
    if isinstance(prompt, str):
        _check_length(codec.min_tokens(prompt), engine, path, at_least=True)
        return await text_ids(prompt, served)
    _check_length(len(prompt), engine, path)
    return checked_ids(prompt, path, codec.vocab_size)


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
    if body.top_logprobs and not body.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
    if (body.n or 1) > config.max_choices:
        raise RequestError(
            f"`n` is {body.n}; at most {config.max_choices} choices are allowed", param="n"
        )
    ids = await chat_ids(body.messages, served)
    limit, limit_name = body.max_completion_tokens, "max_completion_tokens"
    if limit is None:
        limit, limit_name = body.max_tokens, "max_tokens"
    elif body.max_tokens not in (None, limit):
        raise RequestError(
            "`max_completion_tokens` and `max_tokens` differ; send one of them",
            param="max_completion_tokens",
        )
    names = {"prompt": "messages", "max_tokens": limit_name}
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sequences = body.n or 1
    generation = _generation(body, served, config, ids, limit, names, logprobs, sequences=sequences)
    return Ask((generation,), (names,), sequences)


async def chat_ids(messages: Sequence[ChatMessage], served: Served) -> Ids:
    """The prompt after which the model writes the next message.

    Raises:
        RequestError: a message cannot be served, or all are too long.
    """
    given = [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    size = sum(len(text) for message in given for text in message.values())
    floor = sum(served.codec.min_tokens(message["content"]) for message in given)
    _check_length(floor, served.engine, "messages", at_least=True)
    return await _off_loop(size, lambda: served.chat.encode(given))


def check_model(name: str | None, engine: Engine) -> None:
    """Raises `RequestError` unless `name` is what is served, or absent."""
    if name is not None and name != engine.model_name:
        raise RequestError(
            f"the model `{name[:200]}` is not served here; `{engine.model_name}` is",
            param="model",
            code="model_not_found",
        )


def _generation(
    body: GenerationFields,
    served: Served,
    config: GatewayConfig,
    ids: Ids,
    limit: int | None,
    names: Mapping[str, str],
    logprobs: int | None,
    *,
    sequences: int,
) -> Generation:
    engine = served.engine
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
    if limit is not None and (body.min_tokens or 0) > limit:
        raise RequestError(
            f"`min_tokens` is {body.min_tokens}, more than `{names['max_tokens']}`, which is {limit}",
            param="min_tokens",
        )
    stop_ids = _stop_token_ids(body.stop_token_ids or [], served.codec.vocab_size, config)
    ends = set(stop_ids) | (set() if body.ignore_eos else served.codec.stop_tokens)
    return Generation(
        prompt=ids,
        max_tokens=limit,
        sampling=_sampling(body, served.codec.vocab_size, config, tuple(sorted(ends)), logprobs),
        stop=_stop(body.stop, config),
        stop_token_ids=stop_ids,
        include_stop=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        num_sequences=sequences,
    )


def _sampling(
    body: GenerationFields,
    vocab_size: int,
    config: GatewayConfig,
    ends: tuple[int, ...],
    logprobs: int | None,
) -> SamplingParams:
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    if top_p == 0.0:  # no probability mass but the best token's: the same as greedy
        temperature, top_p = 0.0, 1.0
    seed = secrets.randbits(63) if body.seed is None else body.seed & (2**63 - 1)
    return SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=max(body.top_k or 0, 0),
        seed=seed,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body.logit_bias or {}, vocab_size, config),
        min_tokens=body.min_tokens or 0,
        stop_ids=ends if body.min_tokens else (),
        logprobs=logprobs,
    )


def _logit_bias(
    bias: Mapping[str, float], vocab_size: int, config: GatewayConfig
) -> tuple[tuple[int, float], ...]:
    if len(bias) > config.max_logit_bias:
        raise RequestError(
            f"`logit_bias` has {len(bias)} entries; at most {config.max_logit_bias} are allowed",
            param="logit_bias",
        )
    entries: dict[int, float] = {}
    for key, value in bias.items():
        token = int(key) if _NUMBER.fullmatch(key) else -1
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"`logit_bias` has the key `{key[:50]}`; token ids of this model are 0 to {vocab_size - 1}",
                param="logit_bias",
            )
        entries[token] = value
    return tuple(entries.items())


def _stop_token_ids(
    tokens: Sequence[int], vocab_size: int, config: GatewayConfig
) -> tuple[int, ...]:
    if len(tokens) > config.max_stop_strings:
        raise RequestError(
            f"`stop_token_ids` has {len(tokens)} tokens; at most {config.max_stop_strings} are allowed",
            param="stop_token_ids",
        )
    if tokens:
        checked_ids(tokens, "stop_token_ids", vocab_size)
    return tuple(tokens)


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


def _prompts(prompt: str | list[int | str | list[int]]) -> list[tuple[str | Sequence[int], str]]:
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
