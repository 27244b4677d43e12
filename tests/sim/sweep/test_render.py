"""A sweep at a terminal: what its table keeps where there is little room."""

import pytest
from rich.console import Console

from sim.sweep.axes import parse_axes
from sim.sweep.cache import Cache
from sim.sweep.render import render, show_ms
from sim.sweep.runner import sweep
from sim.sweep.workers import Workers
from tests.conftest import DATA
from traces.slo import parse_slo

AXES = parse_axes(["until_s=0.000001,0.1", "replicas=1"])
SLO = parse_slo("ttft=200ms,tpot=9ms")


@pytest.fixture(scope="module")
def result():
    with Workers(1) as workers:
        return sweep(
            DATA / "azure_sample.csv", {}, AXES, workers=workers, cache=Cache(None), slo=SLO
        )


@pytest.mark.parametrize("width", [80, 100, 120])
def test_settings_what_is_lost_and_the_verdict_are_whole_at_any_width(result, width):
    console = Console(width=width, highlight=False)
    with console.capture() as said:
        console.print(render(result, console.width))
    head, first, second, *_ = (" ".join(line.split()) for line in said.get().splitlines())
    assert head.startswith("until_s replicas done unfinished never sent ")
    assert head.endswith(" good/s good meets")
    assert first.startswith("1e-06 1 0 ")
    assert second.startswith("0.1 1 ")
    assert "\N{HORIZONTAL ELLIPSIS}" not in said.get()


def test_where_no_request_is_judged_there_is_no_verdict(result):
    first = result.points[0]
    assert first.figures is not None
    assert first.figures["good_share"] is None
    assert first.meets is None


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (None, "-"), (0.0, "0.0 ms"), (1e-6, "1e-06 ms"), (0.001, "0.001 ms"), (0.05, "0.1 ms"), (99.94, "99.9 ms"), (100.4, "100 ms"),
        (1500.0, "1.50 s"),
    ],
)  # fmt: skip
def test_a_short_time_is_not_shown_as_none(ms, said):
    assert show_ms(ms) == said
