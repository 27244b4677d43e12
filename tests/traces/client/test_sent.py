"""Why fewer requests are sent than read is told, in the terminal and on the page."""

import pytest

from tests.traces.client.stub import Stub, running
from tests.traces.client.test_bench import call, row, trace_file


@pytest.mark.parametrize(
    ("rows", "flags", "told"),
    [
        ([row(0)] * 3, (), ("3 requests read", "3 sent: 3 done, 0 failed, 0 unfinished throughput")),
        ([row(0)] * 3, ("--limit", 9), ("3 requests read requests 3 sent",)),
        ([row(0)] * 3, ("--limit", 2), ("2 requests read, the first that --limit 2 takes", "2 sent")),
        (
            [row(0), row(0.01), row(900), row(901)],
            ("--duration-s", 0.1),
            ("3 requests read", "2 sent: 2 done, 0 failed, 0 unfinished, 1 never sent (due after --duration-s 0.1)"),
        ),
        (
            [row(0, session=0, turn=0), row(0, session=0, turn=1, after=0, think_ns=900 * 10**9)],
            ("--duration-s", 0.1),
            ("1 never sent (due after --duration-s 0.1)",),
        ),
        (
            [row(0)] * 20,
            ("--rate-scale", 0.3, "--seed", 1),
            ("20 requests read", "sent: ", "; --rate-scale 0.3 made ", " of the 20 read"),
        ),
    ],
)  # fmt: skip
def test_why_other_requests_were_sent_than_read(tmp_path, rows, flags, told):
    with running(Stub()) as url:
        result = call(
            url, trace_file(tmp_path, rows), "--warm-up", 0, "--html", tmp_path / "o.html", *flags
        )
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    for part in told:
        assert part in said
    page = (tmp_path / "o.html").read_text()
    assert all(
        reason in page
        for reason in ("--duration-s 0.1)", "--rate-scale 0.3 made")
        if reason in said
    )
