"""Bodies of requests and answers as msgspec Structs: the types are the documentation and the check.

Fields are OpenAI's, plus the common extensions of other servers. Says nothing of what a field does.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

ENCODER = msgspec.json.Encoder()
"""The one JSON encoder of the edge."""

ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles that clients send, and what the template is told."""


def _said(**schema: Any) -> Meta:
    """What the document says of a value whose refusal is written by hand, in better words than a type's."""
    return Meta(extra_json_schema=schema)


StopString = Annotated[str, _said(minLength=1, maxLength=256)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries beside text."""

    include_usage: bool | None = None
    """One more chunk before the end, with token counts and no choices."""
    continuous_usage_stats: bool | None = None
    """With `include_usage`: token counts so far in every chunk."""
    include_obfuscation: Annotated[bool, _said(enum=[False])] | None = None
    """Not supported: chunks are never padded."""


class GenerationFields(Struct, frozen=True, kw_only=True):
    """What both endpoints take. null means the default everywhere."""

    model: str | None = None
    """Absent: the model that is served."""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    """0 and -1: off."""
    seed: Int64 | None = None
    stop: StopString | Annotated[list[StopString], _said(maxItems=16)] | None = None
    stop_token_ids: Annotated[list[int], _said(maxItems=16)] | None = None
    include_stop_str_in_output: bool | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2.0, le=2.0)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    """Smaller ones would take logits beyond what a float32 holds."""
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] | None = None
    """Token ids, as JSON's object keys, to what is added to their logits."""
    use_beam_search: bool | None = None
    """Search for the likeliest answers; nothing is drawn."""
    beam_width: Annotated[int, Meta(ge=1, le=64)] | None = None
    """With `use_beam_search`: hypotheses kept, at least `n`; absent: the larger of `n` and 4."""
    length_penalty: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    """With `use_beam_search`: answers rank by their log probability over their length to this power."""
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`."""

    prompt: (
        Annotated[str, _said(minLength=1)]
        | Annotated[list[int | str | list[int]], _said(minItems=1)]
    )
    """Text, or token ids, or a list of these."""
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """How many of the most probable tokens are reported beside each one."""


class ContentPart(Struct, frozen=True):
    """A part of a message's content; only text can be served."""

    type: Annotated[str, _said(enum=["text"])]
    text: str | None = None


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message of a chat. Fields that other servers' answers carry and that say nothing to the model are ignored."""

    role: Annotated[str, _said(enum=list(ROLES))]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], _said(maxItems=0)] | None = None
    function_call: Annotated[dict[str, Any], _said(maxProperties=0)] | None = None
    audio: Annotated[dict[str, Any], _said(maxProperties=0)] | None = None


class ChatRequest(GenerationFields, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], _said(minItems=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    """The newer name of `max_tokens`."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """With `logprobs`."""


class PromptDetails(Struct, frozen=True):
    """Of the prompt's tokens."""

    cached_tokens: int
    """How many the prefix cache held when the request was first admitted."""


class Usage(Struct, frozen=True):
    """Token counts of one request: all its prompts and all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class CompletionLogprobs(Struct, frozen=True):
    """Of the tokens of a text; lists of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    """Where each token's text begins, counted in characters of the tokens' own texts."""


class TopLogprob(Struct, frozen=True):
    """A token, and how probable it was. `bytes` are what it stands for, `token` is their text."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, frozen=True):
    """A token of the message, and the most probable ones in its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    """Of the tokens of a message."""

    content: list[TokenLogprob]
    refusal: None = None


FinishText = Literal["stop", "length"]


class CompletionChoice(Struct, frozen=True):
    """Text of one choice, whole or the next part of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishText | None = None


class Completion(Struct, frozen=True, tag_field="object", tag="text_completion"):
    """Answer of `/v1/completions`, or one chunk of its stream."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET


class AssistantMessage(Struct, frozen=True):
    """The model's message, whole."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class ChatChoice(Struct, frozen=True):
    """One choice of an answer that is not streamed."""

    index: int
    message: AssistantMessage
    finish_reason: FinishText
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Struct, frozen=True, tag_field="object", tag="chat.completion"):
    """Answer of `/v1/chat/completions`."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage


class MessageDelta(Struct, frozen=True):
    """The next part of the model's message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct, frozen=True):
    """The next part of one choice."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishText | None = None


class ChatChunk(Struct, frozen=True, tag_field="object", tag="chat.completion.chunk"):
    """One chunk of a streamed chat answer."""

    id: str
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """Body of `POST /tokenize`: one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None


class Tokenized(Struct, frozen=True):
    """Answer of `/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """Body of `POST /detokenize`."""

    tokens: list[int]
    model: str | None = None


class Detokenized(Struct, frozen=True):
    """Answer of `/detokenize`; control tokens have no text."""

    prompt: str


class Model(Struct, frozen=True, tag_field="object", tag="model"):
    """A model that is served."""

    id: str
    created: int
    max_model_len: int
    owned_by: str = "kilburn"


class ModelList(Struct, frozen=True, tag_field="object", tag="list"):
    """Answer of `/v1/models`."""

    data: tuple[Model, ...]


class Health(Struct, frozen=True):
    """Answer of `/health`: that the process serves, and how full it is."""

    status: Literal["ok", "draining"]
    model: str
    running: int
    waiting: int
    total_blocks: int
    free_blocks: int


class Ready(Struct, frozen=True):
    """Answer of `/ready`: that requests are taken."""

    model: str
    ready: Literal[True] = True


class Version(Struct, frozen=True):
    """Answer of `/version`."""

    version: str


class Cancelled(Struct, frozen=True):
    """Answer of the cancel endpoint."""

    id: str
    cancelled: Literal[True] = True


class ErrorDetail(Struct, frozen=True):
    """What went wrong, in one sentence, and where."""

    message: str
    type: str
    param: str | None = None
    """Path of the field at fault, as the client wrote it."""
    code: str | None = None


class ErrorBody(Struct, frozen=True):
    """The one shape of errors, as a body and as an event."""

    error: ErrorDetail
