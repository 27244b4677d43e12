"""Settings and axes from text: typed, checked, combined in a defined order."""

import pytest

from engine.core.errors import ConfigError
from sim.config import ReplayConfig
from sim.presets import preset
from sim.sweep.axes import Axis, config_of, grid, parse_axes, parse_settings
from traces.shaping import Shaping


def test_values_have_the_type_of_their_setting():
    texts = ["block-size=32", "n=2", "prefix_cache=off", "num_blocks=none", "arrivals=poisson:3"]
    assert parse_settings(texts) == {
        "block_size": 32,
        "num_sequences": 2,
        "prefix_cache": False,
        "num_blocks": None,
        "arrivals": "poisson:3",
    }


def _settings() -> set[str]:
    return {*ReplayConfig.__struct_fields__, *Shaping.__struct_fields__} - {"shaping"}


def test_every_setting_of_a_replay_is_an_axis():
    for name in _settings():
        with pytest.raises(ConfigError, match=r"expected|unknown value|given twice") as found:
            parse_axes([f"{name}=[]", f"{name}=[]"])
        assert "unknown setting" not in found.value.message


def test_no_value_is_answered_in_the_names_of_types():
    values = ("x", "0", "-1", "1.5", "1e99", "9" * 30, "nan", "none", "[]")
    said = {}
    for name in _settings():
        for value in values:
            try:
                parse_axes([f"{name}={value}"])
            except ConfigError as error:
                said[f"{name}={value}"] = error.message
    assert len(said) > 100
    for asked, message in said.items():
        assert message.startswith(f"--axis {asked}: "), message
        assert not any(mark in message for mark in ("`", "Expected", "null", "int ", "float")), (
            message
        )
    assert said["num_blocks=x"].endswith(": expected a whole number, or none")
    assert said["kv_gb=1e99"].endswith(": expected a number of at most 1,000,000")
    assert said["watermark=1e99"].endswith(": expected a number below 1")
    assert said["prefix_cache=x"].endswith(": expected true or false")


def test_short_names_ranges_and_repeated_values():
    assert parse_axes(["rate=0.5,1,2,1", "replicas=1..3"]) == [
        Axis("rate_scale", (0.5, 1.0, 2.0)),
        Axis("replicas", (1, 2, 3)),
    ]
    assert parse_settings(["tp=2", "n=3"]) == {"tensor_parallel": 2, "num_sequences": 3}


def test_names_are_forgiving():
    assert parse_axes(["blocksize=8"]) == [Axis("block_size", (8,))]
    assert parse_settings(["BlockSize=8"]) == {"block_size": 8}


def test_the_last_axis_changes_fastest():
    axes = [Axis("block_size", (8, 16)), Axis("replicas", (1, 2))]
    places = [(p["block_size"], p["replicas"], p["seed"]) for p in grid({"seed": 7}, axes)]
    assert places == [(8, 1, 7), (8, 2, 7), (16, 1, 7), (16, 2, 7)]


def test_no_axis_is_one_point():
    assert list(grid({"seed": 1}, [])) == [{"seed": 1}]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["block_size"], "write NAME=VALUE, such as block_size=16"),
        (["bloc_size=3"], "unknown setting 'bloc_size' (did you mean block_size?)"),
        (["block_size=8,x"], "--axis block_size=x: expected a whole number"),
        (
            ["policy=fcfs,lifo"],
            "--axis policy=lifo: unknown value 'lifo'; known are fcfs, priority, fair",
        ),
        (["replicas=3..1"], "a range goes up"),
        (["n=1", "num-sequences=2"], "num_sequences is given twice"),
    ],
)
def test_what_is_wrong_with_an_axis_is_one_sentence(texts, message):
    with pytest.raises(ConfigError) as found:
        parse_axes(texts)
    assert message in found.value.message


def test_a_setting_is_not_also_an_axis():
    with pytest.raises(ConfigError, match="block_size is both set and an axis"):
        list(grid({"block_size": 8}, [Axis("block_size", (8,))]))


def test_too_many_points_are_refused_before_any_is_made():
    axes = [Axis("seed", tuple(range(1000))), Axis("replicas", tuple(range(1, 1001)))]
    with pytest.raises(ConfigError, match="1,000,000 points"):
        next(grid({}, axes))


def test_a_preset_gives_what_nothing_else_gives():
    config = config_of(parse_settings(["preset=vllm", "block_size=32"]))
    assert config.block_size == 32
    others = {name: value for name, value in preset("vllm").items() if name != "block_size"}
    assert {name: getattr(config, name) for name in others} == others
    assert [axis.values for axis in parse_axes(["preset=none,vllm"])] == [(None, "vllm")]
    with pytest.raises(ConfigError, match="preset=sglang"):
        parse_settings(["preset=sglang"])


@pytest.mark.parametrize(("flag", "parse"), [("--axis", parse_axes), ("--set", parse_settings)])
def test_a_wrong_arrival_process_is_told_by_the_flag_that_was_typed(flag, parse):
    with pytest.raises(ConfigError) as found:
        parse(["arrivals=poisson:nan"])
    assert found.value.message.startswith(f"{flag} arrivals=poisson:nan: 'nan' must be a number")
