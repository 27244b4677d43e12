"""The server under test: where it is, how to speak to it, what it serves, and how long its tokens are. Everything here happens before the clock runs.

Knows OpenAI's API and `/tokenize` as vLLM and Kilburn have it; knows no schedule.
"""

import ssl
from typing import Final, Literal
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError
from traces.client.prompts import WORDS, Yardstick

Endpoint = Literal["completions", "chat"]
ENDPOINTS: Final[tuple[Endpoint, ...]] = ("completions", "chat")
_PATHS: Final = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_SHOWN: Final = 200


class Target(Struct, frozen=True, kw_only=True):
    """Where requests go."""

    scheme: str
    host: str
    port: int
    prefix: str
    """Of every path, before `/v1`."""
    endpoint: Endpoint
    model: str
    api_key: str | None
    ignore_eos: bool
    temperature: float

    @property
    def authority(self) -> str:
        """Host and port; an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Where the server is, as people write it."""
        return f"{self.scheme}://{self.authority}{self.prefix}"

    def tls(self) -> ssl.SSLContext | None:
        """For `https`, one for all connections: to read the certificates that are trusted takes tens of milliseconds."""
        return ssl.create_default_context() if self.scheme == "https" else None

    def head(self) -> bytes:
        """The request's lines up to its content length."""
        key = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        return (
            f"POST {self.prefix}{_PATHS[self.endpoint]} HTTP/1.1\r\nHost: {self.authority}\r\nUser-Agent: kilburn-bench\r\n"
            f"Accept: text/event-stream\r\nContent-Type: application/json\r\n{key}Content-Length: "
        ).encode()

    def body(self, prompt: str, max_tokens: int) -> bytes:
        """The request's body."""
        fields: dict[str, object] = {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            fields["ignore_eos"] = True
        if self.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        return msgspec.json.encode(fields)


def find_target(
    url: str,
    *,
    endpoint: Endpoint,
    model: str | None,
    api_key: str | None,
    ignore_eos: bool,
    temperature: float,
    timeout_s: float,
) -> Target:
    """The target at `url`, its model found out where it is not given.

    Raises:
        ConfigError: the URL is none, the server does not answer, or it names no model.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
    except ValueError:
        raise ConfigError(
            f"{url} is no address of a server; it looks like http://127.0.0.1:8000"
        ) from None
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise ConfigError(f"{url}: the port is not a number") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url} is no address of a server; it looks like http://127.0.0.1:8000")
    target = Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=port,
        prefix=parts.path.rstrip("/").removesuffix("/v1"),
        endpoint=endpoint,
        model=model or "",
        api_key=api_key,
        ignore_eos=ignore_eos,
        temperature=temperature,
    )
    if model is not None:
        return target
    with _client(target, timeout_s) as client:
        answer = _ask(client, "GET", "/v1/models")
        try:
            found = answer.json()["data"][0]["id"]
        except (ValueError, LookupError, TypeError):
            raise ConfigError(f"{target.url}/v1/models names no model; give --model") from None
    return msgspec.structs.replace(target, model=str(found))


def warm_up(target: Target, times: int, timeout_s: float) -> None:
    """Has the server answer so many short requests, which are in no figure.

    Raises:
        ConfigError: one fails.
    """
    with _client(target, timeout_s) as client:
        for _ in range(times):
            _ask(client, "POST", _PATHS[target.endpoint], target.body(" ".join(WORDS[:16]), 4))


def calibrate(target: Target, timeout_s: float) -> Yardstick:
    """Measures how many tokens words have, by two texts: by `/tokenize` where the server has it, else by what it counts in answers of one token.

    Raises:
        ConfigError: the server counts neither way.
    """
    texts = (" ".join(WORDS), " ".join(WORDS * 2))
    with _client(target, timeout_s) as client:
        source = "/tokenize"
        counts = [_tokenized(client, target, text) for text in texts]
        if None in counts:
            source = "usage of two answers of one token"
            counts = [_used(client, target, text) for text in texts]
    first, second = counts
    if first is None or second is None or second <= first:
        raise ConfigError(
            f"{target.url} neither has /tokenize nor counts prompt tokens, so prompts cannot be made to length; give --tokens-per-word"
        )
    return Yardstick(
        per_word=(second - first) / len(WORDS), offset=2 * first - second, source=source
    )


def server_name(target: Target, timeout_s: float) -> str | None:
    """What the server says it is: `/version`, else its `server` header."""
    with _client(target, timeout_s) as client:
        try:
            answer = client.get("/version")
            if answer.status_code == 200:
                said = answer.json()
                return str(said.get("version", said)) if isinstance(said, dict) else str(said)
            name: str | None = answer.headers.get("server")
            return name
        except (httpx.HTTPError, ValueError):
            return None


def _client(target: Target, timeout_s: float) -> httpx.Client:
    headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    return httpx.Client(base_url=target.url, timeout=timeout_s, headers=headers)


def _ask(client: httpx.Client, method: str, path: str, body: bytes | None = None) -> httpx.Response:
    headers = {"content-type": "application/json"} if body is not None else {}
    try:
        answer = client.request(method, path, content=body, headers=headers)
    except httpx.HTTPError as error:
        raise ConfigError(f"{client.base_url}: no answer to {path}: {error}") from None
    if answer.status_code != 200:
        said = " ".join(answer.text.split())[:_SHOWN]
        raise ConfigError(f"{client.base_url}: {path} answered {answer.status_code}: {said}")
    return answer


def _tokenized(client: httpx.Client, target: Target, text: str) -> int | None:
    """Tokens of a prompt by `/tokenize`; None where there is no such thing."""
    body: dict[str, object] = {"model": target.model, "prompt": text}
    if target.endpoint == "chat":
        body = {"model": target.model, "messages": [{"role": "user", "content": text}]}
    try:
        answer = client.post("/tokenize", json=body)
        return int(answer.json()["count"]) if answer.status_code == 200 else None
    except (httpx.HTTPError, ValueError, LookupError, TypeError):
        return None


def _used(client: httpx.Client, target: Target, text: str) -> int | None:
    """Tokens of a prompt as a short answer counts them."""
    fields = msgspec.json.decode(target.body(text, 1))
    del fields["stream"], fields["stream_options"]
    answer = _ask(client, "POST", _PATHS[target.endpoint], msgspec.json.encode(fields))
    try:
        return int(answer.json()["usage"]["prompt_tokens"])
    except (ValueError, LookupError, TypeError):
        return None
