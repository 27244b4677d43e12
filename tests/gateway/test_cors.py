"""Pages of other origins: allowed where the operator says so, preflights without a key, and no more than that."""

import httpx
import pytest

from engine.core.errors import ConfigError
from gateway.serving import ServeOptions, gateway_config_of
from tests.gateway.live import live, scripted
from tests.gateway.test_access import ALICE, bearer, two

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}


def preflight(client: httpx.Client, **changes: str) -> httpx.Response:
    return client.options("/v1/chat/completions", headers=PREFLIGHT | changes)


@pytest.mark.parametrize("origins", [[PAGE, "http://localhost:3000"], ["*"]])
def test_preflight_passes_without_a_key_and_the_request_with_one(origins: list[str]) -> None:
    with live(scripted([b"a"], tenants=two()), cors_origins=origins) as client:
        allowed = preflight(client)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] in (PAGE, "*")
        assert "POST" in allowed.headers["access-control-allow-methods"]
        granted = allowed.headers["access-control-allow-headers"].lower()
        assert {"authorization", "content-type", "x-stainless-os"} <= set(granted.split(", "))
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        answer = client.post(
            "/v1/chat/completions", json=body, headers=bearer(ALICE) | {"origin": PAGE}
        )
        assert answer.text.endswith("data: [DONE]\n\n")
        assert answer.headers["access-control-allow-origin"] in (PAGE, "*")
        exposed = answer.headers["access-control-expose-headers"]
        for name in ("x-request-id", "retry-after", "x-ratelimit-remaining-tokens"):
            assert name in exposed


def test_page_can_read_why_it_was_refused() -> None:
    with live(
        scripted([b"a"], tenants=two()), cors_origins=[PAGE], max_header_bytes=2000
    ) as client:
        for status, headers in ((401, {}), (404, bearer(ALICE))):
            refused = client.get("/nothing", headers=headers | {"origin": PAGE})
            assert refused.status_code == status
            assert refused.headers["access-control-allow-origin"] == PAGE


def test_other_origins_and_servers_without_the_setting_allow_nothing() -> None:
    with live(scripted([b"a"]), cors_origins=[PAGE]) as client:
        other = preflight(client, origin="https://evil.example")
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers
        answer = client.get("/v1/models", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers
    with live(scripted([b"a"])) as client:
        assert "access-control-allow-origin" not in preflight(client).headers
        assert preflight(client).status_code == 405


@pytest.mark.parametrize(
    "origin", ["chat.example.com", "https://a.example/path", "", "https://a b"]
)
def test_origin_that_no_browser_sends_is_refused_at_the_start(origin: str) -> None:
    with pytest.raises(ConfigError, match="--cors-origin"):
        gateway_config_of(
            ServeOptions.checked(model=None, record=None, api_keys=None, cors_origin=(origin,))
        )
