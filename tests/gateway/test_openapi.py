"""The OpenAPI document: it describes every route, what it describes is what is sent, and bodies made from it never break the server."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from gateway.app import create_app
from gateway.errors import STATUS
from gateway.fields import IGNORED, OFF
from gateway.openapi import document
from gateway.tenants import Tenant, Tenants, digest_of
from tests.gateway.live import gateway_config, live, scripted, wait_until_free

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
    missing_required_header,
]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with live(scripted([b"a", b"b"], num_blocks=256), ping_s=0.05) as client:
        yield client
        wait_until_free(client)


DOCUMENT: dict[str, Any] = json.loads(document(guarded=False))
api = schemathesis.openapi.from_dict(DOCUMENT).exclude(path="/live")


@api.parametrize()
@settings(
    max_examples=12,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_whatever_the_document_allows_or_forbids_is_answered_as_it_says(
    client: httpx.Client, case: Any
) -> None:
    response = case.call(base_url=str(client.base_url), timeout=60)
    case.validate_response(response, checks=CHECKS)
    if response.status_code >= 400 and case.method != "HEAD":
        body = json.loads(response.content)
        assert body.keys() == {"error"}
        assert body["error"].keys() == {"message", "type", "param", "code"}


VALIDATORS = {
    name: jsonschema_rs.validator_for(
        {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    )
    for name in DOCUMENT["components"]["schemas"]
}
BOTH: dict[str, list[Any]] = {
    "model": [None, "scripted"],
    "max_tokens": [1, 5],
    "temperature": [0, 2.0],
    "top_p": [0, 0.5],
    "top_k": [-1, 3],
    "seed": [-1, 2**63 - 1],
    "stop": ["b", ["x", "ab"], []],
    "stop_token_ids": [[260], None],
    "include_stop_str_in_output": [True],
    "n": [1, 3],
    "min_p": [0.1],
    "min_tokens": [0, 1],
    "presence_penalty": [-2],
    "frequency_penalty": [2],
    "repetition_penalty": [1.5],
    "logit_bias": [{}, {"5": -100, "6": 1.5}],
    "ignore_eos": [True],
    "user": ["me"],
    "metadata": [{"a": [1]}],
    "tools": [[], None],
}
BODIES: dict[str, list[dict[str, Any]]] = {
    "CompletionRequest": [
        {"prompt": prompt} | extra
        for prompt in ("hi", ["a", "b"], [5, 6], [[5], [6, 7]])
        for extra in (
            {},
            {"echo": True},
            {"logprobs": 2},
            {"best_of": 3},
            {"use_beam_search": True},
        )
    ],
    "ChatRequest": [
        {"messages": [{"role": role, "content": content}]} | extra
        for role in ("system", "developer", "user", "assistant")
        for content in ("hi", [{"type": "text", "text": "hi"}])
        for extra in ({}, {"logprobs": True, "top_logprobs": 2}, {"max_completion_tokens": 3})
    ],
}
PATH_OF = {"CompletionRequest": "/v1/completions", "ChatRequest": "/v1/chat/completions"}
SENT = {
    "CompletionRequest": ("Completion", "Completion"),
    "ChatRequest": ("ChatCompletion", "ChatChunk"),
}


@pytest.mark.parametrize("kind", BODIES)
def test_good_bodies_are_in_the_document_and_so_is_all_that_answers_them(
    client: httpx.Client, kind: str
) -> None:
    whole, part = SENT[kind]
    extras = [{name: value} for name, values in BOTH.items() for value in values]
    bodies = BODIES[kind] + [BODIES[kind][0] | extra for extra in extras]
    for body in bodies:
        assert VALIDATORS[kind].is_valid(body), body
        answer = client.post(PATH_OF[kind], json=body)
        assert answer.status_code == 200, f"{body}: {answer.text}"
        VALIDATORS[whole].validate(answer.json())
        if body.get("best_of", 1) > 1:
            continue
        asked = body | {"stream": True, "stream_options": {"include_usage": True}}
        assert VALIDATORS[kind].is_valid(asked)
        events = client.post(PATH_OF[kind], json=asked).text.split("\n\n")
        events = [event for event in events if not event.startswith(":")]
        assert events[-2:] == ["data: [DONE]", ""]
        for event in events[:-2]:
            VALIDATORS[part].validate(json.loads(event.removeprefix("data: ")))


def test_every_route_is_described_and_nothing_else() -> None:
    app = create_app(gateway_config(), scripted())
    routed = {
        (route.path.replace(":path", ""), method.lower())  # type: ignore[attr-defined]
        for route in app.routes
        for method in route.methods  # type: ignore[attr-defined]
    }
    assert routed == {(path, m) for path, item in DOCUMENT["paths"].items() for m in item}


def test_document_names_every_field_that_is_taken() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for kind in ("CompletionRequest", "ChatRequest", "TokenizeRequest", "DetokenizeRequest"):
        assert schemas[kind]["properties"].keys() >= IGNORED | OFF.keys()
        assert schemas[kind]["additionalProperties"] == {"type": "null"}
    about = schemas["CompletionRequest"]["properties"]["length_penalty"]["description"]
    assert about.startswith("With `use_beam_search`: answers rank by")


def test_keys_are_asked_for_where_the_document_says_so() -> None:
    tenants = Tenants([(digest_of("some-key"), Tenant(name="some"))])
    with live(scripted([b"a"], tenants=tenants), guard_metrics=True) as guarded:
        described = guarded.get("/openapi.json").json()
        for path, item in described["paths"].items():
            for method, operation in item.items():
                at = path.replace("{label}", "x").replace("{model}", "x")
                status = guarded.request(method, at).status_code
                assert ("security" in operation) == (status == 401), (path, method)
                assert ("401" in operation["responses"]) == (status == 401)
        assert described["components"]["securitySchemes"]
    assert "security" not in json.dumps(DOCUMENT)


def test_errors_that_the_server_knows_are_described() -> None:
    described = {
        int(status)
        for item in DOCUMENT["paths"].values()
        for operation in item.values()
        for status in operation["responses"]
    }
    described |= {401, 405}  # only with keys; for methods that are not there
    assert set(STATUS.values()) <= described


def test_live_feed_sends_what_is_described(client: httpx.Client) -> None:
    kinds = {"hello": "Hello", "frames": "Frames", "now": "Numbers"}
    seen = set()
    with client.stream("GET", "/live") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                VALIDATORS[kinds[event["type"]]].validate(event)
                seen.add(event["type"])
            if seen == kinds.keys():
                break
