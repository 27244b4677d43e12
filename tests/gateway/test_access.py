"""A server with keys: who gets in where, on what terms, and what one tenant sees of another. With real connections."""

import concurrent.futures as futures
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from engine.core.plan import Plan
from gateway.tenants import Tenant, Tenants, digest_of
from tests.engine.gate import Gate
from tests.gateway.live import live, scripted, wait_until, wait_until_free
from tests.gateway.test_bad_input import error_of
from tests.gateway.test_metrics import scrape

ALICE, BOB = "alice-key-1", "bob-key-22"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
OPEN = ["/health", "/ready", "/version", "/metrics", "/", "/page.css", "/page.js"]
GUARDED = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/scripted"),
    ("POST", COMPLETIONS),
    ("POST", CHAT),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/requests/x/cancel"),
    ("GET", "/live"),
    ("GET", "/nothing"),
    ("GET", "/health/"),
]


def two(**of_alice: Any) -> Tenants:
    alice = Tenant(name="alice", salt="tenant:alice", **of_alice)
    bob = Tenant(name="bob", salt="tenant:bob")
    return Tenants([(digest_of(ALICE), alice), (digest_of(BOB), bob)])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextmanager
def guarded(tenants: Tenants | None = None, **settings: Any) -> Iterator[httpx.Client]:
    with live(scripted([b"a", b"b"], tenants=tenants or two()), **settings) as client:
        yield client
        wait_until_free(client)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with guarded() as client:
        yield client


@pytest.mark.parametrize("path", OPEN)
def test_probes_and_files_need_no_key(client: httpx.Client, path: str) -> None:
    assert client.get(path).status_code == 200
    assert client.head(path).status_code == 200


@pytest.mark.parametrize(("method", "path"), GUARDED)
@pytest.mark.parametrize(
    ("header", "says", "challenge"),
    [
        (None, "needs an API key", 'Bearer realm="kilburn"'),
        ("Basic YTpi", "holds no API key", 'Bearer realm="kilburn"'),
        ("Bearer", "holds no API key", 'Bearer realm="kilburn"'),
        ("Bearer wrong-key", "not one of", 'Bearer realm="kilburn", error="invalid_token"'),
        (f"Bearer {ALICE} x", "holds no API key", 'Bearer realm="kilburn"'),
        (b"Bearer \xff\xfe", "not one of", 'Bearer realm="kilburn", error="invalid_token"'),
    ],
)
def test_without_a_key_of_this_server_nothing_else_is_had(
    client: httpx.Client,
    method: str,
    path: str,
    header: str | bytes | None,
    says: str,
    challenge: str,
) -> None:
    headers = {} if header is None else {"authorization": header}
    refused = client.request(method, path, headers=headers)  # type: ignore[arg-type]
    error = error_of(refused, 401)
    assert error["code"] == "invalid_api_key"
    assert says in error["message"]
    assert refused.headers["www-authenticate"] == challenge
    assert "wrong-key" not in refused.text


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER "])
def test_a_key_opens_the_server_however_the_scheme_is_written(
    client: httpx.Client, scheme: str
) -> None:
    headers = {"authorization": f"{scheme} {ALICE}"}
    assert client.get("/v1/models", headers=headers).status_code == 200
    assert client.get("/nothing", headers=headers).status_code == 404


async def test_official_client_with_and_without_its_key(client: httpx.Client) -> None:
    url, messages = f"{client.base_url}/v1", [{"role": "user", "content": "hi"}]
    with openai.OpenAI(base_url=url, api_key=ALICE, max_retries=0) as good:
        assert [m.id for m in good.models.list()] == ["scripted"]
        parts = good.chat.completions.create(model="scripted", messages=messages, stream=True)  # type: ignore[arg-type,call-overload]
        assert "".join(part.choices[0].delta.content or "" for part in parts) == "ab"
    async with openai.AsyncOpenAI(base_url=url, api_key=BOB, max_retries=0) as good_too:
        whole = await good_too.completions.create(model="scripted", prompt="hi")
        assert whole.choices[0].text == "ab"
    with (
        openai.OpenAI(base_url=url, api_key="not-a-key", max_retries=0) as bad,
        pytest.raises(openai.AuthenticationError) as raised,
    ):
        bad.models.list()
    assert raised.value.code == "invalid_api_key"


def test_metrics_can_be_guarded() -> None:
    with guarded(guard_metrics=True) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=bearer(BOB)).status_code == 200
        assert client.get("/health").status_code == 200


def test_prefix_cache_is_not_shared_between_tenants() -> None:
    prompt = {"prompt": "the same long prompt", "max_tokens": 1}

    def cached(client: httpx.Client, key: str) -> int:
        usage = client.post(COMPLETIONS, json=prompt, headers=bearer(key)).json()["usage"]
        wait_until_free(client)
        found: int = usage["prompt_tokens_details"]["cached_tokens"]
        return found

    with guarded() as client:
        assert cached(client, ALICE) == 0
        assert cached(client, BOB) == 0
        assert cached(client, ALICE) == cached(client, BOB) == 16


def test_cancel_touches_own_answers_only() -> None:
    body = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": True}
    gate = Gate()
    gate.let_go(3)
    with (
        live(scripted(num_blocks=256, tenants=two(), pace=gate)) as client,
        client.stream("POST", COMPLETIONS, json=body, headers=bearer(ALICE)) as stream,
    ):
        lines = stream.iter_lines()
        label = next(lines).split('"id":"')[1].split('"')[0]
        path = f"/v1/requests/{label}/cancel"
        theirs = error_of(client.post(path, headers=bearer(BOB)), 404)
        none = error_of(client.post("/v1/requests/cmpl-none/cancel", headers=bearer(BOB)), 404)
        assert theirs["message"].replace(label, "cmpl-none") == none["message"]
        wait_until(client, running=1)
        assert client.post(path, headers=bearer(ALICE)).status_code == 200
        assert '"code":"cancelled"' in [line for line in lines if line][-1]
        gate.open()


def test_requests_beyond_the_rate_are_refused_until_told_and_others_are_not() -> None:
    with guarded(two(requests_per_minute=2)) as client:
        body = {"prompt": "hi"}
        first = client.post(COMPLETIONS, json=body, headers=bearer(ALICE))
        assert first.status_code == 200
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert "x-ratelimit-limit-tokens" not in first.headers
        chat = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        assert client.post(CHAT, json=chat, headers=bearer(ALICE)).status_code == 200
        for path in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
            refused = client.post(path, json=body, headers=bearer(ALICE))
            assert refused.status_code == 429
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert 1 <= int(refused.headers["retry-after"]) <= 30
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert client.get("/v1/models", headers=bearer(ALICE)).status_code == 200
        other = client.post(COMPLETIONS, json=body, headers=bearer(BOB))
        assert other.status_code == 200
        assert not [name for name in other.headers if name.startswith("x-ratelimit")]
        seen = scrape(client)
        assert seen['kilburn_requests_shed_total{reason="rate_limit_exceeded"}'] == 4
        assert seen['kilburn_tenant_shed_total{reason="rate_limit_exceeded",tenant="alice"}'] == 4
        assert seen['kilburn_tenant_shed_total{reason="rate_limit_exceeded",tenant="bob"}'] == 0


def test_tokens_are_trued_up_by_what_the_answer_took() -> None:
    with guarded(two(tokens_per_minute=100)) as client:
        body = {"prompt": "hi", "max_tokens": 90}
        for spent in (5, 10):  # two of prompt, two of answer and its end
            answer = client.post(COMPLETIONS, json=body, headers=bearer(ALICE))
            assert answer.json()["usage"]["total_tokens"] == 5
            listed = client.get("/v1/models", headers=bearer(ALICE))
            assert 100 - spent <= int(listed.headers["x-ratelimit-remaining-tokens"]) < 100
        refused = client.post(COMPLETIONS, json=body | {"max_tokens": 97}, headers=bearer(ALICE))
        assert refused.status_code == 429
        never = client.post(COMPLETIONS, json=body | {"max_tokens": 99}, headers=bearer(ALICE))
        assert error_of(never)["param"] == "max_tokens"


def test_tokens_of_a_request_that_the_engine_refuses_are_given_back() -> None:
    with live(scripted(max_queue=0, tenants=two(tokens_per_minute=100))) as client:
        for _ in range(5):
            refused = client.post(COMPLETIONS, json={"prompt": "hi"}, headers=bearer(ALICE))
            assert refused.json()["error"]["code"] == "over_capacity"
            assert refused.headers["x-ratelimit-remaining-tokens"] == "100"


def test_maximum_context_of_a_key_is_refused_by_name_and_bounds_what_is_not_asked() -> None:
    with live(scripted(tenants=two(max_context=32))) as client:

        def ask(path: str, **body: Any) -> httpx.Response:
            return client.post(path, json=body, headers=bearer(ALICE))

        long = error_of(ask(COMPLETIONS, prompt="x" * 32))
        assert (long["param"], long["code"]) == ("prompt", "context_length_exceeded")
        assert "the context of this key is 32 tokens" in long["message"]
        assert error_of(ask(COMPLETIONS, prompt="hi", max_tokens=31))["param"] == "max_tokens"
        messages = [{"role": "user", "content": "hi"}]
        open_ended = ask(CHAT, messages=messages, ignore_eos=True).json()
        assert open_ended["usage"]["total_tokens"] == 32
        assert open_ended["choices"][0]["finish_reason"] == "length"
        assert ask("/tokenize", prompt="hi").json()["max_model_len"] == 32
        other = {"prompt": "x" * 40, "max_tokens": 1}
        assert client.post(COMPLETIONS, json=other, headers=bearer(BOB)).status_code == 200


def test_open_ended_answer_of_a_bounded_key_still_fits_a_small_pool() -> None:
    served = scripted(num_blocks=8, tenants=two(max_context=400))
    with live(served) as client:
        for n in (1, 2):
            body = {"messages": [{"role": "user", "content": ""}], "ignore_eos": True, "n": n}
            answer = client.post(CHAT, json=body, headers=bearer(ALICE))
            assert answer.status_code == 200, answer.text


def test_tenants_are_told_apart_in_metrics_and_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kilburn.requests")
    with guarded() as client:
        client.post(COMPLETIONS, json={"prompt": "hi"}, headers=bearer(BOB))
        client.post(COMPLETIONS, json={"prompt": "hi"}, headers=bearer("nobodys-key"))
        wait_until_free(client)
        seen = scrape(client)
        text = client.get("/metrics").text
    assert seen['kilburn_tenant_requests_total{tenant="bob"}'] == 1
    assert seen['kilburn_tenant_requests_total{tenant="alice"}'] == 0
    assert seen['kilburn_tenant_tokens_total{kind="prompt",tenant="bob"}'] == 2
    assert seen['kilburn_tenant_tokens_total{kind="generation",tenant="bob"}'] == 3
    assert 'path="other",status="401"' in text
    lines = [r.getMessage() for r in caplog.records if r.name == "kilburn.requests"]
    assert ["tenant=bob" in line for line in lines] == [True]
    assert not any(key in text + "".join(lines) for key in (ALICE, BOB, "nobodys-key"))


def test_weights_divide_the_server_under_the_fair_policy() -> None:
    heavy = Tenant(name="heavy", weight=3.0)
    light = Tenant(name="light")
    tenants = Tenants([(digest_of("heavy-key"), heavy), (digest_of("light-key"), light)])
    gate, begun = Gate(), dict[int, None]()

    def pace(plan: Plan) -> None:
        gate(plan)
        begun.update(dict.fromkeys(plan.requests.tolist()))

    served = scripted(tenants=tenants, policy="fair", max_batch=1, pace=pace)
    with live(served) as client, futures.ThreadPoolExecutor(24) as pool:

        def ask(key: str) -> None:
            body = {"prompt": "hi", "max_tokens": 40, "ignore_eos": True}
            client.post(COMPLETIONS, json=body, headers=bearer(key)).raise_for_status()

        asked = [pool.submit(ask, "light-key") for _ in range(12)]
        wait_until(client, running=1, waiting=11)
        asked += [pool.submit(ask, "heavy-key") for _ in range(12)]
        wait_until(client, running=1, waiting=23)
        gate.open()
        for each in asked:
            each.result()
    assert len(begun) == 24
    of_light = sum(request < 12 for request in list(begun)[:12])
    assert 12 - of_light >= of_light + 3
