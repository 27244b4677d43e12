"""How a body wants its tokens drawn and its answer ended: each field checked against the vocabulary and the server's limits."""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from engine.core.errors import RequestError
from engine.executor import SamplingParams
from engine.requests import BeamSearch
from gateway.config import GatewayConfig
from gateway.prompts import checked_ids
from gateway.schemas import GenerationFields

_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_DEFAULT_WIDTH: Final = 4


def sampling_of(
    body: GenerationFields,
    vocab_size: int,
    config: GatewayConfig,
    ends: tuple[int, ...],
    logprobs: int | None,
) -> SamplingParams:
    """How tokens are drawn; `ends` are those that end the answer.

    Raises:
        RequestError: a bias is for no token, or there are too many.
    """
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


def stop_tokens_of(
    tokens: Sequence[int], vocab_size: int, config: GatewayConfig
) -> tuple[int, ...]:
    """The tokens that end the answer, besides the model's own.

    Raises:
        RequestError: one is not in the vocabulary, or there are too many.
    """
    if len(tokens) > config.max_stop_strings:
        raise RequestError(
            f"`stop_token_ids` has {len(tokens)} tokens; at most {config.max_stop_strings} are allowed",
            param="stop_token_ids",
        )
    if tokens:
        checked_ids(tokens, "stop_token_ids", vocab_size)
    return tuple(tokens)


def stops_of(stop: str | list[str] | None, config: GatewayConfig) -> tuple[str, ...]:
    """The strings that end the answer.

    Raises:
        RequestError: one is empty or too long, or there are too many.
    """
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


def rows_of(body: GenerationFields, sequences: int) -> int:
    """Sequences that a prompt of the body takes in the engine: all hypotheses of a beam search, not only those that are told."""
    if not body.use_beam_search:
        return sequences
    return body.beam_width or max(sequences, _DEFAULT_WIDTH)


def beam_of(body: GenerationFields, sequences: int, logprobs: int | None) -> BeamSearch | None:
    """The beam search that the body asks for.

    Raises:
        RequestError: what it asks for beside does not go with a beam search.
    """
    if not body.use_beam_search:
        for name in ("beam_width", "length_penalty"):
            if getattr(body, name) not in (None, 1):
                raise RequestError(f"`{name}` needs `use_beam_search`", param=name)
        return None
    if sequences != (body.n or 1):
        raise RequestError(
            "`best_of` cannot be had with `use_beam_search`; `beam_width` says how many are kept",
            param="best_of",
        )
    if logprobs is not None:
        raise RequestError("`logprobs` cannot be had with `use_beam_search`", param="logprobs")
    width = rows_of(body, sequences)
    if width < sequences:
        raise RequestError(
            f"`beam_width` is {width} and `n` is {sequences}; at least as many must be kept as are told",
            param="beam_width",
        )
    penalty = 1.0 if body.length_penalty is None else body.length_penalty
    return BeamSearch(width=width, length_penalty=penalty)
