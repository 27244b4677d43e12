"""Step tables: exact on their points, straight between and beyond, and refused where they do not say enough."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.errors import ConfigError
from sim.config import build_config
from sim.cost import decode_work
from sim.replay import replay, resolve
from sim.step_table import TableCost, load_step_table
from tests.conftest import DATA
from tests.sim.test_cost import with_chunk
from traces.formats import open_trace

HEADER = "decodes,decode_context,chunk_tokens,step_us"
AXES = ((0, 8, 64), (0, 1000), (0, 128, 2048))


def law(decodes: float, context: float, chunk: float) -> float:
    """Straight in each of the three, so that what lies between the points is known."""
    return 1000 + 10 * decodes + 0.01 * decodes * context + 50 * chunk


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "steps.csv"
    rows = [f"{d},{c},{t},{law(d, c, t)}" for d, c, t in itertools.product(*AXES)]
    path.write_text("\n".join([HEADER, *rows]))
    return load_step_table(path)


@given(st.integers(0, 100), st.integers(1, 3000), st.integers(0, 4000))
def test_a_straight_law_is_followed_between_and_beyond_the_points(table, decodes, context, chunk):
    work = decode_work(decodes, decodes * context)
    if chunk:
        work = with_chunk(work, 500, chunk, sampled=True)
    expected = 1000 * law(decodes, context if decodes else 0, chunk)
    assert TableCost(table).step_ns(work) == pytest.approx(expected, abs=2)


@given(st.integers(1, 100), st.integers(1, 100_000), st.integers(1, 200))
def test_a_leap_costs_what_its_steps_cost_one_by_one(table, sequences, context, steps):
    cost = TableCost(table)
    work = decode_work(sequences, context)
    one_by_one = [
        cost.step_ns(work._replace(context_tokens=c, attended=c))
        for c in range(context, context + steps * sequences, sequences)
    ]
    assert cost.leap_ns(work, steps).tolist() == one_by_one


def test_a_falling_table_never_goes_below_its_least_time(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER}\n1,0,0,100\n1,1000,0,50\n")
    cost = TableCost(load_step_table(path))
    assert cost.step_ns(decode_work(1, 500)) == 75_000
    assert cost.step_ns(decode_work(1, 90_000)) == 50_000


def test_a_single_point_prices_every_step(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(f"{HEADER}\n1,0,0,100\n")
    report = replay(
        open_trace(DATA / "azure_sample.csv"), resolve(build_config(cost=f"table:{path}"))
    )
    assert report.config.cost_model == "table"
    assert report.tpot_ms.max == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs the columns"),
        ("decodes,step_us\n1,1", "needs the columns"),
        (HEADER, "no rows"),
        (f"{HEADER}\n1,0,0,x", r"line 2: step_us must be a number at least 0, not 'x'"),
        (f"{HEADER}\n1,0,0,0", "line 2: step_us must be above 0"),
        (f"{HEADER}\n1,0", "line 2: chunk_tokens"),
        (f"{HEADER}\n-1,0,0,1", "line 2: decodes"),
        (f"{HEADER}\n1,0,0,1\n1,0,0,2", "line 3: this point stands there twice"),
        (f"{HEADER}\n1,0,0,1\n2,9,0,2", "hole: no row for decodes 1, decode_context 9"),
    ],
)
def test_a_table_that_does_not_say_enough_is_refused(tmp_path, text, words):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_step_table(path)


def test_a_table_that_is_not_there_is_said_plainly():
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve(build_config(cost="table:nowhere.csv"))
