"""What is said of a flag that is wrong: its name as it was typed, the values that it takes; and of one that would change nothing."""

from collections.abc import Callable
from typing import Literal, get_args, get_type_hints

import pytest
from msgspec import Struct
from typer.testing import CliRunner

from engine.core.errors import ConfigError
from gateway.cli import ServeFlags
from gateway.serving import ServeOptions
from kilburn import app
from sim.config import ReplayConfig, build_config
from sim.flags import ReplayFlags
from sim.presets import PRESETS
from tests.conftest import DATA
from traces.checked import checked, choices
from traces.flags import ShapingFlags
from traces.names import find_name
from traces.shaping import Shaping, build_shaping

SAMPLE = str(DATA / "azure_sample.csv")
GROUPS: list[tuple[type[Struct], type[Struct], Callable[..., object]]] = [
    (ReplayFlags, ReplayConfig, build_config),
    (ShapingFlags, Shaping, build_shaping),
    (
        ServeFlags,
        ServeOptions,
        lambda **given: ServeOptions.checked(
            **{"model": None, "record": None, "api_keys": None} | given
        ),
    ),
]


def typed_name(group: type[Struct], field: str) -> str:
    """The flag of a field, as `--help` has it first."""
    option = next(
        each
        for each in get_args(get_type_hints(group, include_extras=True)[field])[1:]
        if hasattr(each, "param_decls")
    )
    spelled = [name for name in (option.default, *option.param_decls) if str(name).startswith("--")]
    return spelled[0].partition("/")[0] if spelled else "--" + field.replace("_", "-")


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0].__name__)
def test_every_error_of_a_setting_begins_with_its_flag(group):
    flags, settings, build = group
    fields = set(flags.__struct_fields__) & set(settings.__struct_fields__)
    for field in fields - {"model", "record", "api_keys"}:
        with pytest.raises(ConfigError) as found:
            build(**{field: object()})
        assert found.value.message.startswith(typed_name(flags, field) + ": ")


@pytest.mark.parametrize("group", GROUPS[::2], ids=lambda group: group[0].__name__)
def test_every_flag_of_words_says_which_it_takes_and_the_nearest(group):
    flags, settings, build = group
    hints = get_type_hints(settings, include_extras=True)
    words = {field: choices(hints[field]) for field in flags.__struct_fields__ if field in hints}
    words = {field: known for field, known in words.items() if known}
    assert len(words) >= 4
    for field, known in words.items():
        wrong = known[-1] + "x"
        with pytest.raises(ConfigError) as found:
            build(**{field: wrong})
        assert found.value.message == (
            f"{typed_name(flags, field)}: unknown value '{wrong}' (did you mean {known[-1]}?); known are {', '.join(known)}"
        )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["replay", SAMPLE, "--policy", "far"], "--policy: unknown value 'far' (did you mean fair?); known are fcfs, priority, fair"),
        (["serve", "--device", "cudda"], "--device: unknown value 'cudda' (did you mean cuda?); known are cpu, cuda"),
        (["sweep", SAMPLE, "--axis", "policy=fcfs,far"], "--axis policy=far: unknown value 'far' (did you mean fair?); known are fcfs"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--set", "router=robin"], "--set router=robin: unknown value 'robin' (did you mean round-robin?)"),
        (["bench", "http://127.0.0.1:1", SAMPLE, "--endpoint", "chats"], "--endpoint: unknown value 'chats' (did you mean chat?)"),
        (["trace", "synth", "o.jsonl", "--num", "1", "--arrivals", "poison:1"], "--arrivals: unknown value 'poison:1' (did you mean poisson?)"),
        (["trace", "synth", "o.jsonl", "--num", "1", "--arrivals", "at-once", "--prompt", "fix:1"], "--prompt: unknown value 'fix:1' (did you mean"),
        (["replay", SAMPLE, "--cost", "rofline"], "--cost: unknown value 'rofline' (did you mean roofline?)"),
        (["replay", SAMPLE, "--n", "0"], "--n: expected a whole number of at least 1"),
        (["sweep", SAMPLE, "--axis", "n=0,1"], "--axis n=0: expected a whole number of at least 1"),
        (["serve", "--num-blocks", "0"], "--num-blocks: expected a whole number of at least 1"),
        (["trace", "synth", "o.jsonl", "--num", "0"], "--num is 0, expected 1 to"),
        (["sweep", SAMPLE, "--limit", "5", "--set", "limit=7"], "--set: limit is given twice, as --limit too"),
        (["sweep", SAMPLE, "--hardware", "L4", "--set", "hardware=H100"], "--set: hardware is given twice"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--limit", "5", "--set", "limit=7"], "--set: limit is given twice, as --limit too"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--seed", "0", "--set", "seed=1"], "--set: seed is given twice"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--model", "Llama-3.1-8B", "--set", "model=Qwen3-32B"], "--set: model is given twice"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence_with_the_flag_and_what_is_known(
    args, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, args)
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith(f"error: {said}"), told.stderr
    assert told.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["replay", SAMPLE, "--record-replica", "0"], "--record-replica changes nothing without --record"),
        (["replay", SAMPLE, "--host-gb", "1"], "--host-gb changes nothing without --preemption"),
        (["replay", SAMPLE, "--link-gb-per-s", "1"], "--link-gb-per-s changes nothing without --preemption"),
        (["replay", SAMPLE, "--router", "least-loaded"], "--router changes nothing with one replica"),
        (["replay", SAMPLE, "--utilisation", "0.5", "--num-blocks", "9"], "--utilisation changes nothing where"),
        (["replay", SAMPLE, "--lockstep", "--policy", "fair"], "--policy changes nothing under --lockstep"),
        (["replay", SAMPLE, "--lockstep", "--json", "x"], "--json changes nothing under --lockstep"),
        (["serve", "--record-tokens"], "--record-tokens changes nothing without --record"),
        (["serve", "--aging-s", "2"], "--aging-s changes nothing without --policy priority or fair"),
        (["serve", "--host-blocks", "2"], "--host-blocks changes nothing without --preemption"),
        (["serve", "--link-gb-per-s", "2"], "--link-gb-per-s changes nothing without --preemption auto"),
        (["serve", "--guard-metrics"], "--guard-metrics changes nothing without keys"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--quick", "--seeds", "2"], "--seeds changes nothing with --quick"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--quick", "--sensitivity"], "--sensitivity changes nothing with --quick"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--no-autoscaling", "--window-s", "2"], "--window-s changes nothing with --no-autoscaling"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--max-users", "2"], "--max-users changes nothing where a fleet is sized"),
        (["plan", SAMPLE, "--slo", "ttft=1s", "--users", "--max-replicas", "2"], "--max-replicas changes nothing where users are sized"),
        (["trace", "synth", "o.jsonl", "--num", "1", "--turns", "fixed:2"], "--turns changes nothing without --sessions"),
        (["trace", "synth", "o.jsonl", "--num", "1", "--rate", "2"], "--rate changes nothing without --clients"),
        (["trace", "synth", "o.jsonl", "--sessions", "--prompt", "fixed:2"], "--prompt changes nothing with --sessions"),
        (["trace", "synth", "o.jsonl", "--lengths", SAMPLE, "--output", "fixed:2"], "--output changes nothing with --lengths"),
        (["inspect", SAMPLE, "--html", "x.html", "--port", "1"], "--port changes nothing beside --html"),
    ],
)  # fmt: skip
def test_a_flag_that_would_change_nothing_is_refused(args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KILBURN_API_KEYS", raising=False)
    told = CliRunner().invoke(app, args)
    assert (told.exit_code, told.stdout) == (2, ""), told.output
    assert told.stderr.startswith(f"error: {said}"), told.stderr
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "args",
    [
        ["--preemption", "recompute", "--host-gb", "1"],
        ["--replicas", "1", "--router", "least-loaded"],
        ["--preset", "vllm", "--token-budget", "512"],
    ],
)
def test_a_flag_whose_partner_is_given_may_stand(args):
    assert CliRunner().invoke(app, ["replay", SAMPLE, *args]).exit_code == 0


@pytest.mark.parametrize(
    "args",
    [
        ["--preemption", "recompute", "--host-blocks", "1", "--link-gb-per-s", "2"],
        ["--policy", "fcfs", "--aging-s", "2"],
    ],
)
def test_a_flag_of_a_server_whose_partner_is_given_may_stand(args, tmp_path):
    told = CliRunner().invoke(app, ["serve", "--model", str(tmp_path / "none.gguf"), *args])
    assert told.exit_code == 2
    assert "changes nothing" not in told.stderr


def test_flags_that_say_what_quick_says_may_stand_beside_it():
    agreed = ["--seeds", "0", "--no-sensitivity", "--no-autoscaling"]
    args = ["plan", SAMPLE, "--slo", "ttft=1s", "--quick", *agreed, "--hardware", "nothing"]
    assert CliRunner().invoke(app, args).stderr.startswith("error: unknown hardware 'nothing'")


class _Inner(Struct, frozen=True):
    word: Literal["up", "down"] | None = None


class _Outer(Struct, frozen=True):
    inner: _Inner = _Inner()


def test_words_are_found_where_they_stand():
    with pytest.raises(
        ConfigError,
        match=r"^--word: unknown value 'dawn' \(did you mean down\?\); known are up, down$",
    ):
        checked({"inner": {"word": "dawn"}}, _Outer)
    assert checked({"inner": {"word": "up"}}, _Outer) == _Outer(_Inner("up"))
    with pytest.raises(ConfigError, match=r"^--way: unknown"):
        checked({"inner": {"word": "left"}}, _Outer, {"word": "--way"})


@pytest.mark.parametrize("spelled", ["VLLM", "v-llm"])
def test_names_forgive_case_and_punctuation(spelled):
    assert find_name("preset", spelled, PRESETS, "") is PRESETS["vllm"]
