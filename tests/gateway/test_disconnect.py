"""A client that leaves takes its request with it, streamed or not, running or waiting (FR-10). Idle streams stay open."""

import select
import socket
from typing import Any

import pytest

from engine.scripted import Gate
from tests.gateway.live import live, raw_post, read_until, scripted, wait_until, wait_until_free
from tests.reference.strict_sse import finishes, read_events, text_of

LONG: dict[str, Any] = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
def test_request_that_waits_ends_with_its_client(stream: bool) -> None:
    gate = Gate()
    behind = LONG | {"prompt": "x" * 400, "max_tokens": 8, "stream": stream}
    with live(scripted(pace=gate, num_blocks=110)) as client:
        with raw_post(client, "/v1/completions", LONG | {"stream": True}):
            wait_until(client, running=1)
            with raw_post(client, "/v1/completions", behind):
                wait_until(client, running=1, waiting=1)
            wait_until(client, running=1, waiting=0)
        gate.open()
        wait_until_free(client)


@pytest.mark.parametrize("stream", [True, False])
def test_request_that_runs_gives_up_its_frames_at_the_next_commit(stream: bool) -> None:
    gate = Gate()
    with live(scripted(pace=gate)) as client:
        with raw_post(client, "/v1/completions", LONG | {"stream": stream}):
            wait_until(client, running=1)
            gate.let_go(3)
        wait_until(client, running=0)
        gate.let_go(2)
        wait_until_free(client)
        gate.open()


def test_preempted_request_ends_with_its_client() -> None:
    gate = Gate()
    body = LONG | {"prompt": "x" * 16, "max_tokens": 60}
    with live(scripted(pace=gate, num_blocks=20)) as client:
        with raw_post(client, "/v1/completions", body):
            wait_until(client, running=1)
            with raw_post(client, "/v1/completions", body | {"prompt": "y" * 16}):
                wait_until(client, running=1, waiting=1)
                gate.let_go(1)
                wait_until(client, running=2)
                gate.let_go(30)
                wait_until(client, running=1, waiting=1)
            wait_until(client, running=1, waiting=0)
        gate.open()
        wait_until_free(client)


def test_stream_ends_with_its_client_and_leaves_the_others_alone() -> None:
    stays = LONG | {"prompt": "stay", "stream": True}
    with live(scripted(num_blocks=256)) as client:
        alone = read_events(client.post("/v1/completions", json=stays).content)
        with client.stream("POST", "/v1/completions", json=stays) as staying:
            with raw_post(client, "/v1/completions", LONG | {"stream": True}) as leaving:
                read_until(leaving, b"data: ", 3)
            beside = read_events(b"".join(staying.iter_bytes()))
        wait_until_free(client)
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
        with socket.create_connection((host, port), timeout=20) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
            )
        wait_until_free(client)


def test_client_that_reads_nothing_is_cut_off_while_others_go_on() -> None:
    bulky = scripted([b"x" * 65536] * 120)
    body = {"prompt": "hi", "max_tokens": 120, "stream": True}
    with (
        live(bulky, send_timeout_s=0.2) as client,
        raw_post(client, "/v1/completions", body) as stalled,
    ):
        read_until(stalled, b"\r\n\r\n")
        hangups = select.poll()
        hangups.register(stalled, select.POLLERR)
        other = read_events(client.post("/v1/completions", json=body).content)
        assert len(text_of(other)) == 120 * 65536
        assert hangups.poll(10_000), "the stalled connection was not reset"
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
