"""The bytes of each endpoint and each kind of error, as recorded in `tests/golden/gateway/`.

`make golden` records them anew; the difference is for a person to judge.
"""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.types import Message

from engine.core.errors import ExecutorError
from engine.core.plan import Plan
from gateway.app import create_app
from tests.gateway.live import gateway_config, scripted

FOLDER = Path(__file__).resolve().parents[1] / "golden" / "gateway"
PIECES = [b"the ", b"lan", b"tern", "\u00fc".encode()[:1], "\u00fc".encode()[1:], b'"\n', b" glows"]
PROMPT = {"model": "scripted", "prompt": "hi"}
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
RUNNING = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
CASES: dict[str, tuple[str, str, Any]] = {
    "health": ("GET", "/health", None),
    "models": ("GET", "/v1/models", None),
    "model": ("GET", "/v1/models/scripted", None),
    "completion": ("POST", "/v1/completions", PROMPT),
    "completion_stream": ("POST", "/v1/completions", PROMPT | {"stream": True}),
    "completion_stream_usage": ("POST", "/v1/completions", PROMPT | USAGE),
    "completion_length": ("POST", "/v1/completions", PROMPT | {"max_tokens": 4, "stream": True}),
    "chat": ("POST", "/v1/chat/completions", CHAT),
    "chat_stream": ("POST", "/v1/chat/completions", CHAT | {"stream": True}),
    "chat_stream_usage": ("POST", "/v1/chat/completions", CHAT | USAGE),
    "chat_stream_running_usage": ("POST", "/v1/chat/completions", CHAT | RUNNING),
    "chat_stop": ("POST", "/v1/chat/completions", CHAT | {"stop": "lantern", "stream": True}),
    "error_json": ("POST", "/v1/completions", b'{"prompt": '),
    "error_type": ("POST", "/v1/completions", PROMPT | {"max_tokens": "many"}),
    "error_nested": ("POST", "/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": [7]}]}),
    "error_unknown_field": ("POST", "/v1/completions", PROMPT | {"max_token": 7}),
    "error_unsupported": ("POST", "/v1/chat/completions", CHAT | {"tools": [{}]}),
    "error_empty_prompt": ("POST", "/v1/completions", PROMPT | {"prompt": ""}),
    "error_context": ("POST", "/v1/completions", PROMPT | {"prompt": "x" * 600}),
    "error_model": ("POST", "/v1/completions", PROMPT | {"model": "gpt-4"}),
    "error_stream_options": ("POST", "/v1/completions", PROMPT | {"stream_options": {}}),
    "error_path": ("GET", "/v2", None),
    "error_method": ("PUT", "/v1/completions", None),
    "error_engine": ("POST", "/v1/completions", PROMPT | {"prompt": "fail at 0"}),
    "error_engine_stream": ("POST", "/v1/completions", PROMPT | {"stream": True, "prompt": "fail at 4"}),
    "error_too_large": ("POST", "/v1/completions", b"x" * 3000),
}  # fmt: skip


async def exchange(method: str, path: str, body: Any) -> bytes:
    """A request to a fresh application and its response, as text: status, headers, body."""
    content = (
        body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    )
    prompt = body.get("prompt", "") if isinstance(body, dict) else ""
    fail_at = int(prompt.split()[-1]) if prompt.startswith("fail at ") else -1

    def fault(plan: Plan) -> Exception | None:
        return ExecutorError("the device is gone") if plan.step == fail_at else None

    loop = asyncio.get_running_loop()

    def until_all_is_delivered(plan: Plan) -> None:
        asyncio.run_coroutine_threadsafe(anyio.wait_all_tasks_blocked(), loop).result(10)

    numbers = itertools.count(1)
    served = scripted(PIECES, step_fault=fault, pace=until_all_is_delivered)
    app = create_app(
        gateway_config(max_body_bytes=2000),
        served,
        clock=lambda: 1_700_000_000.5,
        new_id=lambda: f"{next(numbers):04d}",
    )
    sent: list[Message] = []
    incoming = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if incoming:
            return incoming.pop()
        await anyio.sleep_forever()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "headers": [(b"host", b"x")],
        "server": ("x", 80),
        "client": ("y", 1),
    }
    async with anyio.create_task_group() as group:
        group.start_soon(served.engine.run)
        await app(scope, receive, send)
        group.cancel_scope.cancel()
    shown = content if len(content) < 500 else content[:20] + b" ... %d bytes" % len(content)
    lines = [f"{method} {path}".encode(), shown, b"", str(sent[0]["status"]).encode()]
    lines += sorted(name + b": " + value for name, value in sent[0]["headers"])
    return b"\n".join([*lines, b"", b"".join(m["body"] for m in sent[1:])])


@pytest.mark.parametrize("name", CASES)
async def test_golden_bytes(name: str, request: pytest.FixtureRequest) -> None:
    file = FOLDER / f"{name}.http"
    seen = await exchange(*CASES[name])
    if request.config.getoption("--rewrite-golden"):
        FOLDER.mkdir(parents=True, exist_ok=True)
        file.write_bytes(seen)
    assert seen == file.read_bytes()


def test_golden_files_have_a_case_each() -> None:
    assert sorted(CASES) == sorted(file.stem for file in FOLDER.glob("*.http"))
