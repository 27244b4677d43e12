"""A client that leaves takes its request with it, streamed or not, running or waiting (FR-10). Idle streams stay open."""

import select
import socket
from typing import Any

import pytest

from tests.engine.gate import Gate
from tests.gateway.live import (
    live,
    raw_post,
    read_until,
    scripted,
    wait_until,
    wait_until_free,
    wait_until_told,
)
from tests.gateway.test_metrics import scrape
from tests.reference.strict_sse import finishes, read_events, text_of

LONG: dict[str, Any] = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True}
every_way = pytest.mark.parametrize(
    ("path", "stream"),
    [
        (path, stream)
        for path in ("/v1/completions", "/v1/chat/completions")
        for stream in (True, False)
    ],
)


def asks(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """A long request of `text` to either endpoint, which makes prompts of chats 18 tokens longer."""
    if path == "/v1/completions":
        return LONG | {"prompt": text} | fields
    return {"messages": [{"role": "user", "content": text}]} | {
        name: value for name, value in (LONG | fields).items() if name != "prompt"
    }


@every_way
def test_request_that_waits_ends_with_its_client(path: str, stream: bool) -> None:
    gate = Gate()
    behind = asks(path, "x" * 380, max_tokens=8, stream=stream)
    with live(scripted(pace=gate, num_blocks=110)) as client:
        with raw_post(client, path, asks(path, "hi", stream=True)):
            wait_until(client, running=1)
            with raw_post(client, path, behind):
                wait_until(client, running=1, waiting=1)
            wait_until(client, running=1, waiting=0)
        gate.open()
        wait_until_free(client)


@every_way
def test_request_that_runs_gives_up_its_frames_at_the_next_commit(path: str, stream: bool) -> None:
    gate = Gate()
    with live(scripted(pace=gate)) as client:
        with raw_post(client, path, asks(path, "hi", stream=stream)):
            wait_until(client, running=1)
            gate.let_go(3)
        wait_until(client, running=0)
        gate.let_go(2)
        wait_until_free(client)
        gate.open()


@every_way
@pytest.mark.parametrize("host_blocks", [0, 64])
def test_request_that_gave_way_ends_with_its_client(
    path: str, stream: bool, host_blocks: int
) -> None:
    """By recompute it waits again, with host blocks it lies on the host."""
    gate = Gate()
    mode = "swap" if host_blocks else "recompute"
    preemptions = f'kilburn_num_preemptions_total{{mode="{mode}"}}'
    text = 16 if path == "/v1/completions" else 0
    with live(scripted(pace=gate, num_blocks=20, host_blocks=host_blocks)) as client:
        first = asks(path, "x" * text, max_tokens=60, stream=stream)
        second = asks(path, "y" * text, max_tokens=59, stream=stream)
        with raw_post(client, path, first):
            wait_until(client, running=1)
            with raw_post(client, path, second):
                wait_until(client, running=1, waiting=1)
                gate.let_go(1)
                wait_until(client, running=2)
                gate.let_go(30)
                # It runs no more as soon as that is decided, but gives way when the step that is open commits.
                wait_until_told(client, preemptions, 1.0)
            wait_until(client, running=1, waiting=0)
        gate.open()
        wait_until_free(client)
        before = scrape(client)
        assert before[preemptions] == 1
        assert before["kilburn_num_requests_swapped"] == 0
        assert before["kilburn_kv_host_blocks_used"] == 0
        assert (
            scrape(client)["kilburn_generation_tokens_total"]
            == before["kilburn_generation_tokens_total"]
        )


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_stream_ends_with_its_client_and_leaves_the_others_alone(path: str) -> None:
    """Even those that hold the same frames."""
    stays = asks(path, "the same words " * 3, stream=True, seed=7)
    with live(scripted(num_blocks=256)) as client:
        alone = read_events(client.post(path, json=stays).content)
        with client.stream("POST", path, json=stays) as staying:
            with raw_post(client, path, stays) as leaving:
                read_until(leaving, b"data: ", 3)
            beside = read_events(b"".join(staying.iter_bytes()))
        wait_until_free(client)
        assert scrape(client)["kilburn_prefix_cache_hits_total"] > 0
    assert text_of(beside) == text_of(alone)
    assert finishes(beside) == ["length"]


def test_many_clients_that_leave_at_every_moment_leave_nothing_behind() -> None:
    with live(scripted(num_blocks=128)) as client:
        for i in range(40):
            body = LONG | {"stream": i % 2 == 0}
            with raw_post(client, "/v1/completions", body) as connection:
                if i % 4 == 0:
                    read_until(connection, b"data: ", 1 + i // 4)
        wait_until_free(client)


def test_client_that_leaves_while_it_sends_its_body_costs_nothing() -> None:
    with live(scripted()) as client:
        host, port = client.base_url.host, client.base_url.port
        assert port is not None
        with socket.create_connection((host, port), timeout=60) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
            )
        wait_until_free(client)


def test_client_that_reads_nothing_is_cut_off_while_others_go_on() -> None:
    bulky = scripted([b"x" * 65536] * 120)
    body = {"prompt": "hi", "max_tokens": 120, "stream": True}
    with (
        live(bulky, send_timeout_s=1) as client,
        raw_post(client, "/v1/completions", body) as stalled,
    ):
        read_until(stalled, b"\r\n\r\n")
        hangups = select.poll()
        hangups.register(stalled, select.POLLERR)
        other = read_events(client.post("/v1/completions", json=body).content)
        assert len(text_of(other)) == 120 * 65536
        assert hangups.poll(60_000), "the stalled connection was not reset"
        wait_until_free(client)


def test_idle_stream_gets_comments_and_then_its_answer() -> None:
    gate = Gate()
    body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
    with (
        live(scripted([b"a"], pace=gate), ping_s=0.05, first_byte_s=0.05) as client,
        raw_post(client, "/v1/chat/completions", body) as connection,
    ):
        seen = read_until(connection, b": ping\n\n", 2)
        assert seen.count(b'"role":"assistant"') == 1
        gate.open()
        assert b'"content":"a"' in read_until(connection, b"data: [DONE]\n\n")


def test_interval_of_zero_sends_no_comments() -> None:
    gate = Gate()
    with (
        live(scripted([b"a"], pace=gate), ping_s=0, first_byte_s=0.05) as client,
        raw_post(client, "/v1/completions", {"prompt": "x", "stream": True}) as connection,
    ):
        read_until(connection, b"\r\n\r\n")
        gate.open()
        assert b": ping" not in read_until(connection, b"data: [DONE]\n\n")


def test_failure_after_a_stream_had_to_begin_is_an_event() -> None:
    gate = Gate()
    served = scripted([b"a"], pace=gate, row_fault=lambda request, position: "the logits are bad")
    with (
        live(served, first_byte_s=0.05) as client,
        raw_post(client, "/v1/completions", LONG | {"stream": True}) as connection,
    ):
        assert b" 200 OK" in read_until(connection, b"\r\n\r\n")
        gate.open()
        rest = read_until(connection, b"\n\n")
        assert b'data: {"error":{"message":"the logits are bad"' in rest
        assert b"[DONE]" not in rest
