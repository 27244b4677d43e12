"""Progress without a terminal: a line now and then, and none of short work."""

from hypothesis import given
from hypothesis import strategies as st

from sim.plan.desk import Standing
from sim.plan.progress import line
from sim.progress import PERIOD_S, seldom
from sim.sweep.progress import bar
from sim.sweep.runner import Progress


@given(st.lists(st.floats(0, 100), max_size=30))
def test_lines_are_a_period_apart_and_none_is_due_that_was_kept_back(gaps):
    now, said = 0.0, []
    tell = seldom(lambda text: said.append((now, text)), clock=lambda: now)
    last = 0.0
    for number, gap in enumerate(gaps):
        now += gap
        due = now - last >= PERIOD_S
        tell(str(number))
        assert (bool(said) and said[-1] == (now, str(number))) is due
        last = now if due else last


def test_a_plan_that_waits_for_nothing_names_nothing(monkeypatch, capsys):
    monkeypatch.setattr("sim.progress.PERIOD_S", 0.0)
    with line() as watch:
        watch(Standing(done=3, cached=0, running=0, label=""))
        watch(Standing(done=3, cached=0, running=1, label="2 x H100"))
    assert capsys.readouterr().err == (
        "planning: 3 simulations done, 0 asked for\n"
        "planning: 3 simulations done, 1 asked for, now 2 x H100\n"
    )


def test_short_work_says_nothing_and_long_work_says_where_it_is(monkeypatch, capsys):
    standing = Standing(done=3, cached=1, running=2, label="2 x H100")
    progress = Progress(total=10, done=4, cached=0, failed=1)
    for period, told in (
        (PERIOD_S, ["", ""]),
        (0.0, ["3 simulations done", "4 of 10 points, 1 failed"]),
    ):
        monkeypatch.setattr("sim.progress.PERIOD_S", period)
        for watching, what, words in ((line, standing, told[0]), (bar, progress, told[1])):
            with watching() as watch:
                watch(what)
            output = capsys.readouterr()
            assert output.out == ""
            assert words in output.err if words else output.err == ""
