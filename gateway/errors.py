"""Errors as clients see them: OpenAI's JSON shape, a status before the first byte and an event after it.

The only place that turns the codes of `engine.core.errors` into HTTP.
"""

import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import ClassVar, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from engine.core.errors import CapacityError, RequestError, ServeError
from gateway.schemas import ENCODER, ErrorBody, ErrorDetail

STATUS: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "invalid_api_key": 401,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "request_timeout": 408,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "over_capacity": 429,
    "rate_limit_exceeded": 429,
    "headers_too_large": 431,
    "shutting_down": 503,
    "cancelled": 499,
}
"""By `RequestError.reason` or `ServeError.code`. Other request errors are 400, all other errors 500."""

_PUBLIC_CODE: Final[Mapping[str, str]] = {"context_exceeded": "context_length_exceeded"}
"""Codes that OpenAI's clients know under another name."""


class ShuttingDownError(CapacityError):
    """The server is ending; another one may take the request."""

    code: ClassVar[str] = "shutting_down"


class CancelledError(ServeError):
    """Somebody asked for the request's end; trying again is not wanted."""

    code: ClassVar[str] = "cancelled"


def describe(error: ServeError) -> tuple[int, ErrorBody]:
    """The status and the JSON body of an error."""
    if isinstance(error, RequestError):
        status = STATUS.get(error.reason, 400)
        detail = ErrorDetail(
            message=error.message,
            type="invalid_request_error",
            param=error.param,
            code=_PUBLIC_CODE.get(error.reason, error.reason),
        )
        return status, ErrorBody(error=detail)
    status = STATUS.get(error.code, 500)
    kind = "rate_limit_error" if status == 429 else "server_error"
    return status, ErrorBody(error=ErrorDetail(message=error.message, type=kind, code=error.code))


def error_response(error: ServeError) -> Response:
    """The response that says `error`, with `Retry-After` where the error knows it."""
    status, body = describe(error)
    headers = {}
    if isinstance(error, CapacityError) and error.retry_after_ms is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1000)))
    if status == HTTPStatus.REQUEST_TIMEOUT:
        headers["connection"] = "close"
    return Response(
        ENCODER.encode(body), status_code=status, headers=headers, media_type="application/json"
    )


_MISSING: Final = re.compile(r"Object missing required field `(.+)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.+)`")


def validation_error(error: msgspec.ValidationError) -> RequestError:
    """A body of valid JSON and wrong types, as an error that names the field by its path."""
    text, _, path = str(error).partition(" - at `")
    param = path.rstrip("`").removeprefix("$").removeprefix(".").removesuffix("[...]")
    absent, unknown = _MISSING.fullmatch(text), _UNKNOWN.fullmatch(text)
    field = absent or unknown
    if field is not None:
        param = f"{param}.{field[1]}" if param else field[1]
    where = f"`{param}`" if param else "the body"
    if absent is not None:
        return RequestError(f"{where} is missing", param=param)
    if unknown is not None:
        return RequestError(
            f"there is no field {where}; leave it out", param=param, code="unknown_parameter"
        )
    return RequestError(f"{where}: {text[:1].lower()}{text[1:]}", param=param or None)


async def on_serve_error(request: Request, error: Exception) -> Response:
    """Answers a request that ended in one of our errors."""
    assert isinstance(error, ServeError)
    return error_response(error)


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answers what the router refuses: no such path, or not by this method."""
    assert isinstance(error, HTTPException)
    path, method = request.scope["path"][:200], request.method
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        said = RequestError(f"{path} does not take {method}", code="method_not_allowed")
    else:
        said = RequestError(f"there is nothing at {path}", code="not_found")
    response = error_response(said)
    response.headers.update(error.headers or {})
    return response


async def on_bug(request: Request, error: Exception) -> Response:
    """Answers when our own code fails; the exception itself goes on to the server's log."""
    return error_response(ServeError("the server failed to handle this request"))
