"""The API's own description, `/openapi.json`: OpenAPI 3.1, generated from the types that bodies are read into and written from.

Which bodies an operation has is told here; what is in them comes from the Structs, their bounds and their docstrings. Fields that are
ignored or taken only with the value that means "off" are described too, so a body that the document allows is never refused for a
field's name. Knows types and statuses; knows no requests.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct

from gateway.feed import Frames, Hello, Numbers, own_version
from gateway.fields import IGNORED, OFF
from gateway.schemas import (
    Cancelled,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    Completion,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    ErrorBody,
    Health,
    Model,
    ModelList,
    Ready,
    Tokenized,
    TokenizeRequest,
    Version,
)

Json = dict[str, Any]
_TEMPLATE: Final = "#/components/schemas/{name}"
_ALWAYS: Final = (431, 500)
_BODY: Final = (400, 404, 408, 413, 415, 429)
_WORK: Final = (*_BODY, 499, 503)


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    summary: str
    body: type[Struct] | None = None
    answer: type[Struct] | str
    """A Struct is JSON; a string is the media type of something else."""
    events: tuple[type[Struct], ...] = ()
    """What events carry where the answer is a stream."""
    ends_with_done: bool = False
    errors: tuple[int, ...] = ()
    guarded: bool = True
    """Whether it needs a key where the server has keys."""


def _probe(path: str, summary: str, answer: type[Struct] | str, *errors: int) -> Operation:
    return Operation(
        method="get", path=path, summary=summary, answer=answer, errors=errors, guarded=False
    )


OPERATIONS: Final = (
    Operation(
        method="post",
        path="/v1/completions",
        summary="Continue a text.",
        body=CompletionRequest,
        answer=Completion,
        events=(Completion, ErrorBody),
        ends_with_done=True,
        errors=_WORK,
    ),
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a chat.",
        body=ChatRequest,
        answer=ChatCompletion,
        events=(ChatChunk, ErrorBody),
        ends_with_done=True,
        errors=_WORK,
    ),
    Operation(
        method="post",
        path="/v1/requests/{label}/cancel",
        summary="End an answer that is being generated, by its id.",
        answer=Cancelled,
        errors=(404,),
    ),
    Operation(
        method="get", path="/v1/models", summary="The one model that is served.", answer=ModelList
    ),
    Operation(
        method="get",
        path="/v1/models/{model}",
        summary="The one model, by name.",
        answer=Model,
        errors=(404,),
    ),
    Operation(
        method="post",
        path="/tokenize",
        summary="The token ids of a prompt or a chat.",
        body=TokenizeRequest,
        answer=Tokenized,
        errors=_BODY,
    ),
    Operation(
        method="post",
        path="/detokenize",
        summary="The text of token ids.",
        body=DetokenizeRequest,
        answer=Detokenized,
        errors=_BODY,
    ),
    _probe("/health", "That the process serves, and how full it is.", Health),
    _probe("/ready", "That new requests are taken.", Ready, 503),
    _probe("/version", "Of this program.", Version),
    _probe("/metrics", "For Prometheus.", "text/plain"),
    _probe("/openapi.json", "This document.", "application/json"),
    _probe("/", "The live page.", "text/html"),
    _probe("/page.css", "Its style sheet.", "text/css"),
    _probe("/page.js", "Its script.", "text/javascript"),
    Operation(
        method="get",
        path="/live",
        summary="What the live page shows, as it changes, until the reader leaves.",
        answer="text/event-stream",
        events=(Hello, Frames, Numbers),
        errors=(429,),
    ),
)


def document(*, guarded: bool, guard_metrics: bool = False) -> bytes:
    """The document of a server that has keys (`guarded`) or not, as JSON."""
    kinds = [
        kind
        for each in OPERATIONS
        for kind in (each.body, each.answer, *each.events)
        if isinstance(kind, type)
    ]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_TEMPLATE)
    for kind in {kind.__name__: kind for kind in _reached(kinds)}.values():
        _describe(schemas, kind)
    for each in OPERATIONS:
        if each.body is not None:
            _close(schemas[each.body.__name__])
    paths: dict[str, Json] = {}
    for each in OPERATIONS:
        needs_key = guarded and (each.guarded or (guard_metrics and each.path == "/metrics"))
        path = paths.setdefault(each.path, {})
        path[each.method] = _operation(each, needs_key=needs_key)
        if each.method == "get":
            path["head"] = _head(path["get"])
    components: Json = {"schemas": schemas}
    if guarded:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    whole = {
        "openapi": "3.1.0",
        "info": {
            "title": "Kilburn",
            "version": own_version(),
            "description": "A language model over OpenAI's API.",
        },
        "paths": paths,
        "components": components,
    }
    return msgspec.json.encode(whole)


def _operation(each: Operation, *, needs_key: bool) -> Json:
    errors = {*each.errors, *_ALWAYS, *((401,) if needs_key else ())}
    said: Json = {
        "summary": each.summary,
        "operationId": f"{each.method}{each.path}".translate(str.maketrans("/.{}", "____")),
        "responses": {
            "200": _answer(each),
            **{str(status): _error(status) for status in sorted(errors)},
        },
    }
    parameters = [
        {"name": part[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for part in each.path.split("/")
        if part.startswith("{")
    ]
    if parameters:
        said["parameters"] = parameters
    if each.body is not None:
        content = {"application/json": {"schema": _ref(each.body)}}
        said["requestBody"] = {"required": True, "content": content}
    if needs_key:
        said["security"] = [{"key": []}]
    return said


def _answer(each: Operation) -> Json:
    content: Json = {}
    if isinstance(each.answer, type):
        content["application/json"] = {"schema": _ref(each.answer)}
    elif not each.events:
        content[each.answer] = {}
    if each.events:
        data: list[Json] = [
            {"type": "string", "contentMediaType": "application/json", "contentSchema": _ref(kind)}
            for kind in each.events
        ]
        if each.ends_with_done:
            data.append({"const": "[DONE]"})
        content["text/event-stream"] = {
            "schema": {
                "description": "One event.",
                "type": "object",
                "properties": {"data": {"anyOf": data}},
                "required": ["data"],
            }
        }
    return {"description": each.summary, "content": content, "headers": _REQUEST_ID}


_REQUEST_ID: Final[Json] = {
    "x-request-id": {
        "description": "The client's own label of the request, or one that it was given.",
        "schema": {"type": "string"},
    }
}
_RETRY: Final[Json] = {
    "retry-after": {"description": "Seconds.", "schema": {"type": "integer", "minimum": 1}}
}
_CHALLENGE: Final[Json] = {"www-authenticate": {"schema": {"type": "string"}}}


def _error(status: int) -> Json:
    headers = {401: _CHALLENGE, 429: _RETRY}.get(status)
    phrase = "Client Closed Request" if status == 499 else HTTPStatus(status).phrase
    said: Json = {
        "description": phrase,
        "content": {"application/json": {"schema": _ref(ErrorBody)}},
    }
    return said if headers is None else said | {"headers": headers}


def _head(get: Json) -> Json:
    """The same without bodies."""
    responses = {
        status: {name: value for name, value in response.items() if name != "content"}
        for status, response in get["responses"].items()
    }
    return get | {
        "operationId": get["operationId"].replace("get", "head", 1),
        "responses": responses,
    }


def _ref(kind: type[Struct]) -> Json:
    return {"$ref": _TEMPLATE.format(name=kind.__name__)}


def _close(schema: Json) -> None:
    """Adds the fields that are known and say nothing, and allows no others but with null."""
    fields = schema["properties"]
    for name in sorted(IGNORED - fields.keys()):
        fields[name] = {"description": "Ignored: it cannot change an answer."}
    for name, off in OFF.items():
        if name not in fields:
            fields[name] = {
                "description": "Not supported; these values ask for nothing.",
                "enum": [None, *off],
            }
    schema["additionalProperties"] = {"type": "null"}


def _reached(kinds: Iterable[Any]) -> set[type[Struct]]:
    """All Structs in `kinds`, and in their fields."""
    found: set[type[Struct]] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in found:
                found.add(kind)
                waiting += [field.type for field in msgspec.structs.fields(kind)]
        else:
            waiting += getattr(kind, "__args__", ())
    return found


def _describe(schemas: Mapping[str, Json], kind: type[Struct]) -> None:
    """Takes the docstrings of fields over."""
    fields = schemas[kind.__name__]["properties"]
    said = _docs(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in said:
            fields[field.encode_name]["description"] = said[field.name]


@cache
def _docs(kind: type) -> dict[str, str]:
    """What stands below each field in the source of a class and of those it extends."""
    said: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not issubclass(each, Struct) or each is Struct:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    said[name] = " ".join(text.split())
    return said
