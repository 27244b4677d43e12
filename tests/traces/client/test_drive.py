"""The open loop: requests leave when they are due, latencies count from then, and each ends in exactly one count."""

import socket
import ssl

import numpy as np
import pytest

from tests.traces.client.driving import SECOND, drive, drive_exactly, request, target_of
from tests.traces.client.stub import Stub, running
from traces.client.measure import counts, honesty, latencies, over_time, throughput, times_of
from traces.client.outcomes import State
from traces.schema import TraceRequest

EXACT_MS = 0.001
"""Virtual time is floating-point seconds, and stamps are whole nanoseconds."""


def test_measured_times_are_the_server_s():
    stub = Stub(ttft_s=0.08, gap_s=0.02)
    driver = drive_exactly(stub, [request(0.05 * i, output=11) for i in range(10)])
    outcomes = driver.outcomes
    times = times_of(outcomes)
    assert outcomes.count(State.DONE) == 10
    assert times.ttft == pytest.approx(80, abs=EXACT_MS)
    assert times.tpot == pytest.approx(20, abs=EXACT_MS)
    assert times.e2e == pytest.approx(280, abs=EXACT_MS)
    # What the server did, on the same clock: the client sees each token when it was written.
    first = np.array([written[0] for written in stub.written_ns]) - driver.start_ns
    assert np.all(np.abs(outcomes.ints("first_ns") - first) <= 1)
    assert latencies(outcomes).distributions.gap_ms[100] == pytest.approx(20, rel=0.05)
    assert outcomes.num_gaps == 100


def test_measured_times_over_real_connections_are_never_shorter_than_the_server_s():
    stub = Stub(ttft_s=0.08, gap_s=0.02)
    with running(stub) as url:
        driver = drive(url, [request(0.05 * i, output=3) for i in range(4)])
    outcomes = driver.outcomes
    assert outcomes.count(State.DONE) == 4
    assert np.all(times_of(outcomes).ttft >= 79)
    # There in order of arrival, here in order of sending: the earliest of all is no earlier.
    first = np.array([written[0] for written in stub.written_ns]) - driver.start_ns
    assert outcomes.ints("first_ns").min() >= first.min()


def test_server_that_stalls_hides_nothing():
    """Requests that were due during a stall of a second have waited for its end, and were sent in time all the same."""
    stub = Stub()
    stub.stalls = [(0.3, 1.3)]
    outcomes = drive_exactly(stub, [request(0.05 * i) for i in range(40)]).outcomes
    assert outcomes.count(State.DONE) == 40
    due = outcomes.ints("due_ns") / SECOND
    during = (due > 0.299) & (due < 1.299)
    assert during.sum() == 20
    times = times_of(outcomes)
    assert times.ttft[during] == pytest.approx(1000 * (1.3 - due[during]), abs=EXACT_MS)
    assert times.ttft[~during] == pytest.approx(0, abs=EXACT_MS)
    assert times.late == pytest.approx(0, abs=EXACT_MS)
    assert stub.arrivals == pytest.approx(due, abs=EXACT_MS / 1000)
    # A client that waits for an answer before it sends the next would have seen one slow request of forty, 25 ms in the mean.
    assert latencies(outcomes).ttft.mean > 250


def test_client_that_was_held_up_sends_late_says_so_and_counts_from_when_it_was_due():
    driver = drive_exactly(Stub(), [request(0.1 * i) for i in range(6)], held_up=(0.05, 0.35))
    outcomes = driver.outcomes
    times = times_of(outcomes)
    assert times.late == pytest.approx([0, 250, 150, 50, 0, 0], abs=EXACT_MS)
    assert times.ttft == pytest.approx(times.late, abs=EXACT_MS)
    assert honesty(outcomes).late_over_10ms == 3


KINDS = {
    "500": "http 500",
    "cut": "cut short",
    "error": "error in the stream",
    "garbage": "not an event of this API",
    "empty": "no token",
    "silent": "timeout",
}


@pytest.mark.parametrize("model", KINDS)
def test_each_failure_has_its_name(model):
    with running(Stub(gap_s=0.005)) as url:
        timeout_s = 0.5 if model == "silent" else 60
        driver = drive(url, [request(0.0), request(0.02)], model=model, timeout_s=timeout_s)
    outcomes = driver.outcomes
    assert outcomes.failures() == {KINDS[model]: 2}
    found = counts(outcomes, driver.never_sent, driver.interrupted, driver.said)
    assert found.submitted == found.done + sum(found.failed.values()) + found.unfinished == 2
    if model == "500":
        assert "on fire" in found.said["http 500"]


def test_server_that_is_not_there():
    with running(Stub()) as url:
        pass
    driver = drive(url, [request(0.0)])
    assert driver.outcomes.failures() == {"no connection": 1}
    assert driver.said["no connection"]


def test_answer_without_usage_is_done_and_said():
    driver = drive_exactly(Stub(gap_s=0.01), [request(0.0, output=5)], model="nousage")
    assert driver.outcomes.count(State.DONE) == 1
    assert honesty(driver.outcomes).without_usage == 1
    assert times_of(driver.outcomes).tpot[0] == pytest.approx(10, abs=EXACT_MS)


def test_interrupted_run_counts_what_is_open_and_what_was_never_sent():
    rows = [request(0.0), request(0.05), request(30.0), request(31.0)]
    driver = drive_exactly(Stub(ttft_s=5.0), rows, stop_after_s=0.4)
    found = counts(driver.outcomes, driver.never_sent, driver.interrupted, driver.said)
    assert (found.submitted, found.unfinished, found.never_sent) == (2, 2, 2)
    assert found.interrupted
    assert driver.end_ns == pytest.approx(0.4 * SECOND, abs=1)
    open_s = 0.4 + 0.35
    assert throughput(driver.outcomes, driver.end_ns, 2).mean_open == pytest.approx(open_s / 0.4)
    assert sum(over_time(driver.outcomes, driver.end_ns).done_per_s) == 0


def test_nothing_is_sent_after_the_duration_and_what_is_open_is_waited_for():
    rows = [request(0.0), request(0.1), request(0.4), request(9.0)]
    driver = drive_exactly(Stub(ttft_s=0.3), rows, duration_s=0.2)
    assert driver.outcomes.count(State.DONE) == 2
    assert driver.never_sent == 1, "the first that is due too late; those after it are not read"
    assert driver.end_ns == pytest.approx(0.4 * SECOND, abs=1)


def one_after_another(count: int) -> list[TraceRequest]:
    """Turns of one session: the next is sent when the one before has been answered."""
    follow = [request(0.0, session=0, turn=i, after=i - 1, think_ns=0) for i in range(1, count)]
    return [request(0.0, session=0, turn=0), *follow]


def test_connections_are_used_again_and_one_that_was_just_closed_is_no_failure():
    with running(Stub()) as url:
        driver = drive(url, one_after_another(8))
    assert driver.outcomes.count(State.DONE) == 8
    assert driver.num_connections == 1
    with running(Stub(keep_alive=False)) as url:
        driver = drive(url, one_after_another(8))
    assert driver.outcomes.count(State.DONE) == 8
    assert driver.num_connections == 8
    with running(Stub()) as url:
        driver = drive(url, one_after_another(4), model="stale")
    assert driver.outcomes.count(State.DONE) == 4
    assert driver.num_connections == 4


def test_turn_of_a_session_waits_for_the_one_before_and_the_think_time():
    stub = Stub(ttft_s=0.1)
    rows = [
        request(0.0, session=0, turn=0),
        request(0.0, session=0, turn=1, after=0, think_ns=SECOND // 5),
        request(0.0, session=0, turn=2, after=1, think_ns=0),
    ]
    driver = drive_exactly(stub, rows)
    assert driver.outcomes.count(State.DONE) == 3
    assert stub.arrivals == pytest.approx([0, 0.1 + 0.2, 0.1 + 0.2 + 0.1], abs=EXACT_MS / 1000)


def test_many_at_one_instant_are_all_sent_at_once():
    stub = Stub(ttft_s=0.2)
    driver = drive_exactly(stub, [request(0.3) for _ in range(100)])
    assert driver.outcomes.count(State.DONE) == 100
    assert throughput(driver.outcomes, driver.end_ns, 100).most_open == 100
    assert max(stub.arrivals) == pytest.approx(0, abs=EXACT_MS / 1000)


def test_trusted_certificates_are_read_once_for_all_connections(monkeypatch):
    made = []
    real = ssl.create_default_context
    monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(1) or real())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"https://127.0.0.1:{taken.getsockname()[1]}"
        driver = drive(url, [request(0.0) for _ in range(5)])
    assert driver.outcomes.failures() == {"no connection": 5}
    assert len(made) == 1


def test_an_ipv6_address_keeps_its_brackets():
    target = target_of("http://[::1]:8000/v1")
    assert target.url == "http://[::1]:8000"
    assert b"\r\nHost: [::1]:8000\r\n" in target.head()
    assert target_of("http://localhost:8000").url == "http://localhost:8000"
