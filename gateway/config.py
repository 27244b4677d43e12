"""Settings of the edge: frozen, validated once when built by `msgspec.convert`."""

import re
from typing import Annotated, Final

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(ge=0.0)]
Count = Annotated[int, Meta(ge=1)]
_ORIGIN: Final = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+|null")


class GatewayConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to listen, how long to wait, and how much to take from one client."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """0 takes a free port."""
    ping_s: Seconds = 15.0
    """Between keep-alive comments on a stream; 0 sends none."""
    first_byte_s: Annotated[float, Meta(gt=0.0)] = 10.0
    """How long a stream's headers wait for the first token, so that a failure before it is still an HTTP status."""
    send_timeout_s: Annotated[float, Meta(gt=0.0)] = 30.0
    """A client for which too much is buffered to write more, and that has not taken most of it after so long, is cut off, and its request
    aborted; so is one that does not take the end of its answer."""
    drain_s: Seconds = 30.0
    """After SIGTERM: how long running requests may go on before they are ended with an error."""
    keep_alive_s: Count = 60
    """How long an idle connection stays open, and how long the head of a request may take."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may read answers; `*`: all."""
    guard_metrics: bool = False
    """With keys: `/metrics` needs one, too."""
    max_body_bytes: Count = 8 * 1024 * 1024
    body_s: Annotated[float, Meta(gt=0.0)] = 60.0
    """How long a client may take to send a body."""
    max_header_bytes: Count = 32 * 1024
    """Of a request's target and headers."""
    max_stop_strings: Count = 16
    max_stop_chars: Count = 256
    """Longest stop string, in characters."""
    max_choices: Count = 128
    """Most sequences of one body: prompts times `n` or `best_of`."""
    max_logit_bias: Count = 1024
    """Most tokens with a bias."""
    view_interval_s: Annotated[float, Meta(gt=0.0)] = 0.1
    """Between two looks at the pool for the live page."""
    max_viewers: Count = 16
    """Live pages that are fed at once."""

    def __post_init__(self) -> None:
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"the origin {origin[:200]!r} must be `*` or a scheme and a host, such as https://chat.example.com"
                )
