"""Flags that several commands share: each is a setting of the Struct that it sets, with its default, and stands where its group does."""

from typing import Annotated

import msgspec
import pytest
import typer
from msgspec import Struct
from typer.testing import CliRunner

from gateway.cli import ServeFlags
from gateway.serving import ServeOptions
from sim.config import ReplayConfig
from sim.flags import ReplayFlags
from traces.flags import ShapingFlags
from traces.given import Given
from traces.shaping import Shaping
from traces.spread import spread


def defaults(settings: Struct, *without: str) -> dict[str, object]:
    fields = msgspec.structs.asdict(settings)
    assert set(without) <= set(fields)
    return {name: value for name, value in fields.items() if name not in without}


def test_the_flags_of_a_replay_are_its_settings_with_their_defaults() -> None:
    app = typer.Typer()
    app.command()(lambda: None)
    nothing = Given(typer.Context(typer.main.get_command(app)))
    assert ReplayFlags().settings(nothing) == defaults(ReplayConfig(), "shaping", "until_s")


def test_the_flags_of_shaping_are_its_settings_with_their_defaults() -> None:
    assert defaults(ShapingFlags()) == defaults(Shaping(), "resample")


def test_the_flags_of_serve_are_its_settings_with_their_defaults() -> None:
    several = ("api_key", "cors_origin")
    assert defaults(ServeFlags(), *several) == defaults(ServeOptions(), *several)
    assert all(getattr(ServeFlags(), name) is None for name in several)


class Pair(Struct, frozen=True, kw_only=True):
    one: Annotated[int, typer.Option(help="The first.")] = 1
    two: Annotated[str, typer.Option("--deux")]


def test_a_groups_flags_stand_in_its_place_and_arrive_as_one_value() -> None:
    got: list[object] = []
    app = typer.Typer()

    @app.command()
    @spread
    def command(name: str, *, before: bool = False, pair: Pair, after: int = 3) -> None:
        got.extend([name, before, pair, after])

    told = CliRunner().invoke(app, ["x", "--deux", "zwei", "--after", "4"])
    assert told.exit_code == 0, told.output
    assert got == ["x", False, Pair(two="zwei"), 4]
    text = CliRunner().invoke(app, ["--help"]).stdout
    places = [text.index(flag) for flag in ("--before", "--one", "--deux", "--after")]
    assert places == sorted(places)
    assert CliRunner().invoke(app, ["x"]).exit_code == 2, "a field without a default is required"


def test_two_flags_of_one_name_are_refused() -> None:
    def command(*, pair: Pair, one: int = 0) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"two flags of command have one name: one$"):
        spread(command)
