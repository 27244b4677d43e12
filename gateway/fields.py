"""Reads a request body into its Struct, and refuses by name each field that could change the answer and is not supported.

Three kinds of field besides those of the Struct: some are ignored, because they cannot change an answer; some are known and
taken only with the value that means "off"; anything else is refused unless it is null, which asks for nothing whatever the name.
"""

from typing import Final, TypeVar

import msgspec

from engine.core.errors import RequestError
from gateway.errors import validation_error
from gateway.schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationFields,
    TokenizeRequest,
)

IGNORED: Final = frozenset(
    {
        "user", "metadata", "service_tier", "store", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "parallel_tool_calls", "request_id", "priority",
    }
)  # fmt: skip
"""They say who asks, or how to keep books, and never what to answer."""

OFF: Final[dict[str, tuple[object, ...]]] = {
    "suffix": ("",),
    "add_special_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "cache_salt": (),
    "detokenize": (True,),
    "echo": (False,),
    "best_of": (1,),
    "top_logprobs": (0,),
    "prompt_logprobs": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "early_stopping": (False,),
    "truncate_prompt_tokens": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_reasoning": (True, False),
    "logits_processors": ([],),
    "prompt_embeds": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "structured_outputs": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields that are known but not supported, each with the values that ask for nothing. null always does."""

Body = TypeVar("Body", CompletionRequest, ChatRequest, TokenizeRequest, DetokenizeRequest)

_TOP_LEVEL: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_body(body: bytes, kind: type[Body]) -> Body:
    """The body as a `kind`.

    Raises:
        RequestError: it is not JSON, not an object, has a wrong type somewhere, or asks for what is not supported.
    """
    try:
        body.decode()  # the decoder does not look into text that it skips
        given = _TOP_LEVEL.decode(body)
        decoded = msgspec.json.decode(body, type=kind)
        known = set(kind.__struct_fields__)
        for name, value in given.items():
            if name not in known and name not in IGNORED:
                _check_off(name, value)
    except msgspec.ValidationError as error:
        raise validation_error(error) from None
    except msgspec.DecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the body is not valid JSON: it is not UTF-8 at byte {error.start}",
            code="invalid_json",
        ) from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None
    if isinstance(decoded, GenerationFields):
        _check_stream_options(decoded)
    return decoded


def _check_off(name: str, raw: msgspec.Raw) -> None:
    """Raises unless the field asks for nothing."""
    value = msgspec.json.decode(raw)
    if value is None:
        return
    if name not in OFF:
        short = name[:100]
        raise RequestError(
            f"there is no field `{short}`; leave it out", param=short, code="unknown_parameter"
        )
    if any(_same(value, off) for off in OFF[name]):
        return
    allowed = [msgspec.json.encode(off).decode() for off in OFF[name]]
    instead = f"; leave it out or send {' or '.join(allowed)}" if allowed else "; leave it out"
    raise RequestError(
        f"`{name}` is not supported by this server{instead}",
        param=name,
        code="unsupported_parameter",
    )


def _same(value: object, off: object) -> bool:
    """JSON equality: 0 and 0.0 are the same, 0 and false are not."""
    return value == off and isinstance(value, bool) == isinstance(off, bool)


def _check_stream_options(body: GenerationFields) -> None:
    if body.stream_options is not None and body.stream_options.include_obfuscation:
        raise RequestError(
            "`stream_options.include_obfuscation` is not supported by this server; leave it out or send false",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    if body.stream_options is not None and not body.stream:
        raise RequestError("`stream_options` needs `stream` to be true", param="stream_options")
