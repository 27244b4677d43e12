"""Clients that read slowly get fewer and larger chunks; those that stop are cut off; nobody beside them notices."""

import asyncio
import select
import socket
import time

from gateway.sse import EventWriter
from tests.gateway.live import (
    chunks_of,
    gateway_config,
    live,
    raw_post,
    read_until,
    scripted,
    wait_until_free,
)
from tests.reference.strict_sse import finishes, read_events, text_of

PIECE, NUM = b"x" * 4096, 400
"""Some 1.6 MB a stream: more than the buffers of both sides hold."""
BODY = {"prompt": "hi", "max_tokens": NUM, "stream": True}
TEXT = PIECE.decode() * NUM


def was_reset(connection: socket.socket, *, reads: bool, limit_s: float = 60) -> bool:
    """Whether the server resets the connection while nothing is read of it, or a byte now and then."""
    hangups = select.poll()
    hangups.register(connection, select.POLLERR)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if hangups.poll(20):
            return True
        if reads:
            connection.recv(1)
    return False


def test_reader_that_stops_and_one_that_drips_are_cut_off_while_another_goes_on() -> None:
    with (
        live(scripted([PIECE] * NUM, num_blocks=512), send_timeout_s=1) as client,
        raw_post(client, "/v1/completions", BODY, receive_buffer=4096) as stopped,
        raw_post(client, "/v1/completions", BODY, receive_buffer=4096) as dripping,
    ):
        other = read_events(client.post("/v1/completions", json=BODY).content)
        assert text_of(other) == TEXT
        assert finishes(other) == ["length"]
        assert was_reset(stopped, reads=False)
        assert was_reset(dripping, reads=True)
        wait_until_free(client)


def test_reader_that_pauses_gets_the_rest_in_fewer_chunks_and_all_of_it() -> None:
    with (
        live(scripted([PIECE] * NUM, num_blocks=512), send_timeout_s=20) as client,
        raw_post(client, "/v1/completions", BODY, receive_buffer=4096) as slow,
    ):
        raw = read_until(slow, b"\r\n\r\n")
        wait_until_free(client)
        raw += read_until(slow, b"0\r\n\r\n")
    chunks = chunks_of(raw)
    assert text_of(read_events(b"".join(chunks))) == TEXT
    assert len(chunks) < NUM / 2


def test_answer_at_once_that_nobody_takes_is_dropped_with_its_connection() -> None:
    body = {"prompt": "hi", "max_tokens": 120}
    pieces = [b"y" * 65536] * 120
    with (
        live(scripted(pieces), send_timeout_s=0.3) as client,
        raw_post(client, "/v1/completions", body, receive_buffer=4096) as stopped,
    ):
        assert was_reset(stopped, reads=False)
        wait_until_free(client)


def test_each_chunk_holds_whole_events_and_whole_characters_and_no_part_of_a_stop_string() -> None:
    emoji = "\N{GRINNING FACE}".encode()
    pieces = [
        b"a",
        emoji[:1],
        emoji[1:3],
        emoji[3:],
        b"st",
        b"op it",
        b"sto",
        b"p",
        b"end",
        b"here",
    ]
    body = {"prompt": "hi", "max_tokens": 40, "stream": True, "stop": ["endhere"]}
    with (
        live(scripted(pieces)) as client,
        raw_post(client, "/v1/completions", body) as reader,
    ):
        raw = b""
        while not raw.endswith(b"0\r\n\r\n"):  # events come apart where the reader makes them
            raw += reader.recv(7)
    chunks = chunks_of(raw)
    assert all(chunk.endswith(b"\n\n") and chunk.startswith(b"data: ") for chunk in chunks)
    said = [text_of(read_events(chunk)) for chunk in chunks]
    assert "".join(said) == b"".join(pieces[:-2]).decode()
    assert not any("end" in text or "\ufffd" in text for text in said)


class Closing:
    """A connection that will take no more, and says nothing of it: it closes when its client has read what is buffered."""

    writable = True
    looks = 0

    def listen(self, told: object) -> None:
        """Never tells."""

    def write(self, body: bytes) -> None:
        """Counts what it is given."""
        self.looks += 1

    def reset(self) -> None:
        """Nobody resets it here."""


async def test_stream_on_a_connection_that_closes_without_a_word_is_given_up_and_does_not_spin() -> (
    None
):
    connection, stalled = Closing(), asyncio.Event()

    async def send(message: object) -> None:
        connection.looks += 1

    config = gateway_config(ping_s=0.01, send_timeout_s=0.1)
    writer = EventWriter(connection, send, config, lambda: None, stalled.set)
    writer.write(b"data: 1\n\n")
    connection.writable = False
    await asyncio.wait_for(stalled.wait(), 60)
    writer.close()
    assert connection.looks == 2, "the headers and one event"
