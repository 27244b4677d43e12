"""Keys that change while the server runs: the next request has the new ones, who runs goes on, and a wrong file changes nothing."""

import signal
import time
from pathlib import Path

import httpx
import pytest

from engine.core.errors import ConfigError
from gateway.renewal import reread
from gateway.tenants import Tenant, Tenants, digest_of, load_tenants
from tests.gateway.live import live, scripted, wait_until, wait_until_free
from tests.gateway.standstill import StandStill
from tests.gateway.test_access import bearer
from tests.gateway.test_metrics import scrape
from tests.gateway.test_server import STREAM, outcome, process
from tests.reference.strict_sse import DONE, finishes, read_events

OLD, NEW = "old-key-123", "new-key-456"
COMPLETIONS = "/v1/completions"


def one(name: str, key: str, per_minute: int | None = None) -> Tenants:
    tenant = Tenant(name=name, salt=f"tenant:{name}", requests_per_minute=per_minute)
    return Tenants([(digest_of(key), tenant)])


def status(client: httpx.Client, key: str) -> int:
    body = {"prompt": "hi", "max_tokens": 1}
    return client.post(COMPLETIONS, json=body, headers=bearer(key)).status_code


def test_next_request_has_the_new_keys_and_who_runs_goes_on() -> None:
    tenants, pace = one("alice", OLD), StandStill()
    served = scripted(tenants=tenants, pace=pace)
    pace.attend(served.engine)
    with live(served) as client:
        body = STREAM | {"max_tokens": 200}
        with client.stream("POST", COMPLETIONS, json=body, headers=bearer(OLD)) as stream:
            wait_until(client, running=1)
            tenants.renew(one("bob", NEW, per_minute=2))
            assert status(client, OLD) == 401
            assert [status(client, NEW) for _ in range(3)] == [200, 200, 429]
            pace.open()
            events = read_events(b"".join(stream.iter_bytes()))
        assert finishes(events) == ["length"]
        assert events[-1] == DONE
        wait_until_free(client)
        counted = scrape(client)
    for name, taken in (("alice", 1), ("bob", 2)):
        assert counted[f'kilburn_tenant_requests_total{{tenant="{name}"}}'] == taken


def test_same_terms_keep_what_was_used_and_new_ones_begin_afresh() -> None:
    tenants = one("alice", OLD, per_minute=1)
    with live(scripted([b"a"], tenants=tenants)) as client:
        assert status(client, OLD) == 200
        tenants.renew(one("alice", NEW, per_minute=1))
        assert status(client, NEW) == 429
        tenants.renew(one("alice", NEW, per_minute=2))
        assert status(client, NEW) == 200


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True)])
def test_whether_there_are_keys_is_settled_at_the_start(before: bool, after: bool) -> None:
    made = {True: one("alice", OLD), False: Tenants()}
    with pytest.raises(ConfigError, match="restart it"):
        made[before].renew(made[after])
    assert made[before].guarded is before


def test_wrong_file_leaves_the_keys_and_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tenants = one("alice", OLD)
    file = tmp_path / "keys.toml"
    for text in ("[[tenants", '[[tenants]]\nname = "bob"\n'):
        file.write_text(text)
        reread(tenants, lambda: load_tenants(file, ""))
    assert [tenant.name for tenant in tenants.all] == ["alice"]
    assert [
        record.message.startswith("the keys stay as they were: ") for record in caplog.records
    ] == [
        True,
        True,
    ]
    assert OLD not in caplog.text


def test_hangup_reads_the_file_again(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[[tenants]]\nname = "alice"\nkey = "{OLD}"\n')
    with (
        process(drain_s=60, key_file=file) as (server, url),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        assert (status(client, OLD), status(client, NEW)) == (200, 401)
        file.write_text(f'[[tenants]]\nname = "alice"\nkey = ["{OLD}", "{NEW}"]\n')
        server.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 60
        while status(client, NEW) != 200:
            assert time.monotonic() < deadline
        assert status(client, OLD) == 200
        server.send_signal(signal.SIGTERM)
        code, errors = outcome(server)
    assert code == 0
    assert "the keys were read again; tenants: alice" in errors
