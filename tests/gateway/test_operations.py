"""What operators ask: is it ready, which version is it, what did a request cost."""

import logging

import pytest

from tests.engine.gate import Gate
from tests.gateway.live import live, scripted, wait_until_free


def test_ready_names_the_model_and_version_is_told() -> None:
    with live(scripted([b"a"])) as client:
        assert client.get("/ready").json() == {"model": "scripted", "ready": True}
        assert set(client.get("/version").json()) == {"version"}


def test_each_request_leaves_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kilburn.requests")
    with live(scripted([b"secret ", b"answer"])) as client:
        answer = client.post("/v1/completions", json={"prompt": "private"}).json()
        wait_until_free(client)
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "kilburn.requests"
    ]
    fields = dict(pair.split("=") for pair in line.split(" "))
    assert fields["id"] == answer["id"]
    assert fields["endpoint"] == "completions"
    assert fields["finish"] == "stop"
    assert (fields["prompt"], fields["generated"]) == ("7", "3")
    assert float(fields["ttft_ms"]) <= float(fields["total_ms"])
    assert "private" not in line
    assert "secret" not in line


def test_cancel_ends_an_answer_by_its_id_and_says_so_to_its_reader() -> None:
    body = {"prompt": "hi", "max_tokens": 400, "ignore_eos": True, "stream": True}
    gate = Gate()
    gate.let_go(3)
    with live(scripted(num_blocks=256, pace=gate)) as client:
        with client.stream("POST", "/v1/completions", json=body) as stream:
            lines = stream.iter_lines()
            label = next(lines).split('"id":"')[1].split('"')[0]
            assert client.post(f"/v1/requests/{label}/cancel").json() == {
                "id": label,
                "cancelled": True,
            }
            rest = [line for line in lines if line]
        assert '"code":"cancelled"' in rest[-1]
        again = client.post(f"/v1/requests/{label}/cancel")
        gate.open()
        wait_until_free(client)
    assert again.status_code == 404
    assert again.json()["error"]["code"] == "not_found"
