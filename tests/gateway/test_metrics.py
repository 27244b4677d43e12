"""`/metrics`: names that dashboards know, values that add up, and no series that a client could make (FR-14)."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.core.errors import ExecutorError
from engine.core.plan import Plan
from gateway.app import create_app
from gateway.tenants import Tenant, Tenants, digest_of
from tests.gateway.live import gateway_config, live, scripted, wait_until_free

STEMS = (
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total", "prefix_cache_queries_total",
    "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total", "request_success_total",
    "time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "request_time_per_output_token_seconds_count",
    "e2e_request_latency_seconds_count", "request_queue_time_seconds_count", "request_prefill_time_seconds_count",
    "request_decode_time_seconds_count", "iteration_tokens_total_count", "step_time_seconds_count", "transfer_blocks_total",
    "requests_shed_total",
)  # fmt: skip


def scrape(client: httpx.Client) -> dict[str, float]:
    """Value of each series, by name and labels as written."""
    response = client.get("/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    list(text_string_to_metric_families(response.text))
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_names_that_dashboards_know_are_there_from_the_first_scrape() -> None:
    with live(scripted([b"a"])) as client:
        names = {name.partition("{")[0] for name in scrape(client)}
        head = client.head("/metrics")
    assert {f"kilburn_{stem}" for stem in STEMS} <= names
    assert head.status_code == 200
    assert head.content == b""


def test_counts_are_those_of_the_answers() -> None:
    pieces = [b"one ", b"two ", b"three"]
    with live(scripted(pieces)) as client:
        whole = client.post("/v1/completions", json={"prompt": "hello there"}).json()["usage"]
        client.post("/v1/completions", json={"prompt": "hello there", "stream": True}).read()
        wait_until_free(client)
        seen = scrape(client)
    assert seen["kilburn_prompt_tokens_total"] == 2 * whole["prompt_tokens"]
    assert seen["kilburn_generation_tokens_total"] == 2 * whole["completion_tokens"]
    assert seen['kilburn_request_success_total{finished_reason="stop"}'] == 2
    for name in (
        "time_to_first_token",
        "e2e_request_latency",
        "request_queue_time",
        "request_prefill_time",
    ):
        assert seen[f"kilburn_{name}_seconds_count"] == 2, name
    assert seen["kilburn_iteration_tokens_total_sum"] >= 2 * (whole["completion_tokens"] - 1)
    assert seen["kilburn_prefix_cache_hits_total"] > 0
    assert seen['kilburn_kv_blocks{state="held"}'] == 0
    assert seen["kilburn_num_requests_running"] == 0


def test_failed_and_refused_requests_are_told_apart() -> None:
    def fault(plan: Plan) -> Exception | None:
        return ExecutorError("the device hiccuped") if plan.step == 0 else None

    with live(scripted([b"a"], step_fault=fault)) as client:
        assert client.post("/v1/completions", json={"prompt": "hi"}).status_code == 500
        seen = scrape(client)
    assert seen['kilburn_request_success_total{finished_reason="error"}'] == 1
    assert seen['kilburn_request_success_total{finished_reason="stop"}'] == 0
    assert seen["kilburn_e2e_request_latency_seconds_count"] == 0
    with live(scripted(max_queue=0)) as client:
        assert client.post("/v1/completions", json={"prompt": "hi"}).status_code == 429
        seen = scrape(client)
    assert seen['kilburn_requests_shed_total{reason="over_capacity"}'] == 1


KEYED = Tenants([(digest_of("a-key-here"), Tenant(name="alice"))])


@pytest.mark.parametrize("tenants", [None, KEYED])
@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer a-key-here"}])
def test_scanner_adds_no_series_after_its_first_miss(
    tenants: Tenants | None, headers: dict[str, str]
) -> None:
    with live(scripted([b"a"], tenants=tenants)) as client:

        def scan(number: int) -> None:
            client.get(f"/wp-admin-{number}.php?x={number}", headers=headers)
            client.get(f"/v1/models/model-{number}", headers=headers)
            client.post(f"/v1/requests/nothing-{number}/cancel", headers=headers)
            client.get("/v1/models", headers={"authorization": f"Bearer guess-{number}"})
            client.post("/tokenize", json={f"pot-{number}": 1}, headers=headers)
            method = ("PROPFIND", "PURGE", "MKCOL", "REPORT")[number % 4]
            client.request(method, f"/pot-{number}", headers=headers)
            client.request(method, "/v1/completions", headers=headers)

        scan(0)
        client.get("/metrics")
        before = client.get("/metrics").text
        for number in range(1, 40):
            scan(number)
        after = client.get("/metrics").text
    assert len(after.splitlines()) == len(before.splitlines())
    for word in ("wp-admin", "model-", "nothing-", "PURGE", "pot-", "guess-"):
        assert word not in after
    if tenants is None or headers:
        assert 'path="/v1/models/{model:path}"' in after
        assert 'method="OTHER",path="other",status="404"' in after
    else:
        assert 'method="OTHER",path="other",status="401"' in after


async def test_failure_of_our_own_is_counted_as_the_500_that_the_client_gets() -> None:
    times = [0.0]
    app = create_app(gateway_config(), scripted([b"a"]), clock=times.pop)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post("/v1/completions", json={"prompt": "hi"})
        seen = (await client.get("/metrics")).text
    assert answer.status_code == 500
    assert (
        'kilburn_http_requests_total{method="POST",path="/v1/completions",status="500"} 1.0' in seen
    )
