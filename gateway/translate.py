"""A request body to what the engine takes: token ids, sampling, limits. Every refusal names the field.

Knows both kinds of body and the engine's codec; knows nothing of connections or of how answers look.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from engine.core.errors import RequestError
from engine.requests import Generation
from gateway.prompts import Ids, chat_ids, check_length, prompt_ids, prompts_of
from gateway.sampling import beam_of, rows_of, sampling_of, stop_tokens_of, stops_of
from gateway.schemas import ChatRequest, CompletionRequest, GenerationFields
from gateway.terms import Terms

COMPLETION_MAX_TOKENS: Final = 16
"""What `/v1/completions` generates when the client sets no limit, as OpenAI documents it."""


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
        named = param is None or param in error.message
        message = error.message if named else f"`{param}`: {error.message}"
        return RequestError(message, param=param, code=error.reason)


async def completion_ask(body: CompletionRequest, terms: Terms) -> Ask:
    """What `/v1/completions` asks of the engine.

    Raises:
        RequestError: a field holds what cannot be served.
    """
    terms.check_model(body.model)
    most = terms.config.max_choices
    num_choices = body.n or 1
    best_of = body.best_of or num_choices
    _check_best_of(body, num_choices, best_of)
    prompts = prompts_of(body.prompt)
    rows = rows_of(body, best_of)
    if len(prompts) * rows > most:
        param = "prompt" if rows == 1 else "n" if best_of == num_choices else "best_of"
        if rows > best_of:
            param = "beam_width"
        raise RequestError(
            f"`{param}` asks for {len(prompts) * rows} sequences in all; at most {most} are allowed",
            param=param,
        )
    generations, names, echoes, size = [], [], [], 0
    for prompt, path in prompts:
        ids = await prompt_ids(prompt, path, terms, beside=size)
        size += len(prompt)
        limit = body.max_tokens
        if limit is None:
            limit = min(COMPLETION_MAX_TOKENS, max(1, terms.max_context - len(ids)))
        name = {"prompt": path, "max_tokens": "max_tokens"}
        logprobs = body.logprobs
        if logprobs is None and best_of > num_choices:
            logprobs = 0
        generations.append(_generation(body, terms, ids, limit, name, logprobs, sequences=best_of))
        names.append(name)
        if body.echo:
            echoes.append(prompt if isinstance(prompt, str) else terms.served.codec.decode(ids))
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


async def chat_ask(body: ChatRequest, terms: Terms) -> Ask:
    """What `/v1/chat/completions` asks of the engine.

    Raises:
        RequestError: a field holds what cannot be served.
    """
    terms.check_model(body.model)
    if not body.messages:
        raise RequestError(
            "`messages` is empty; send at least one message", param="messages", code="empty_prompt"
        )
    if body.top_logprobs and not body.logprobs:
        raise RequestError("`top_logprobs` needs `logprobs` to be true", param="top_logprobs")
    most = terms.config.max_choices
    rows = rows_of(body, body.n or 1)
    if rows > most:
        param = "n" if rows == body.n else "beam_width"
        raise RequestError(
            f"`{param}` asks for {rows} sequences; at most {most} are allowed", param=param
        )
    ids = await chat_ids(body.messages, terms)
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
    generation = _generation(body, terms, ids, limit, names, logprobs, sequences=sequences)
    return Ask((generation,), (names,), sequences)


def _generation(
    body: GenerationFields,
    terms: Terms,
    ids: Ids,
    limit: int | None,
    names: Mapping[str, str],
    logprobs: int | None,
    *,
    sequences: int,
) -> Generation:
    codec, config, tenant = terms.served.codec, terms.config, terms.tenant
    check_length(len(ids), terms, names["prompt"])
    room = terms.max_context - len(ids)
    if limit is not None and limit > room:
        name = names["max_tokens"]
        raise RequestError(
            f"`{name}` is {limit} and the prompt has {len(ids)} tokens, but {terms.context_words}; ask for at most {room}",
            param=name,
            code="context_length_exceeded",
        )
    if limit is not None and (body.min_tokens or 0) > limit:
        raise RequestError(
            f"`min_tokens` is {body.min_tokens}, more than `{names['max_tokens']}`, which is {limit}",
            param="min_tokens",
        )
    if limit is None:
        limit = terms.answer_room(len(ids), sequences)
    stop_ids = stop_tokens_of(body.stop_token_ids or [], codec.vocab_size, config)
    ends = set(stop_ids) | (set() if body.ignore_eos else codec.stop_tokens)
    return Generation(
        prompt=ids,
        max_tokens=limit,
        sampling=sampling_of(body, codec.vocab_size, config, tuple(sorted(ends)), logprobs),
        stop=stops_of(body.stop, config),
        stop_token_ids=stop_ids,
        include_stop=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        num_sequences=sequences,
        salt=tenant.salt,
        tenant=tenant.name,
        weight=tenant.weight,
        priority=tenant.priority,
        beam=beam_of(body, sequences, logprobs),
    )
