"""Settings by name, from text: `--set block_size=32`, `--axis rate=0.5,1,2`, `--axis replicas=1..8`. Knows what can be set, not what it does."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_type_hints

import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError
from sim.config import ReplayConfig, build_config
from sim.presets import PRESETS, preset
from sim.pricing import recorded_settings
from sim.replay import resolve
from sim.report.figures import Resolved
from traces.arrivals import gaps_ns
from traces.checked import complaint
from traces.names import find_name
from traces.shaping import Shaping

MOST_POINTS: Final = 100_000
_SHORT: Final = {
    "n": "num_sequences",
    "rate": "rate_scale",
    "time": "time_scale",
    "tp": "tensor_parallel",
}
_TYPES: Final = {
    name: kind
    for struct in (ReplayConfig, Shaping)
    for name, kind in get_type_hints(struct, include_extras=True).items()
    if name in struct.__struct_fields__ and name != "shaping"
} | {"preset": Literal[tuple(PRESETS)] | None}
_RANGE: Final = re.compile(r"(\d+)\.\.(\d+)")

Settings = dict[str, Any]
"""Name of a setting -> its value; what is absent has its default."""


class Axis(Struct, frozen=True):
    """A setting and the values that it takes in turn."""

    name: str
    values: tuple[Any, ...]


def parse_settings(texts: Iterable[str]) -> Settings:
    """`NAME=VALUE` each; dashes and underscores are one.

    Raises:
        ConfigError: not of that shape, an unknown name, a value of the wrong kind, or a name given twice.
    """
    settings: Settings = {}
    for text in texts:
        typed, name, value = _split("--set", text)
        if name in settings:
            raise ConfigError(f"--set: {name} is given twice")
        settings[name] = _value(f"--set {typed}", name, value)
    return settings


def with_flags(settings: Settings, flags: Settings) -> Settings:
    """The settings, and those that a command has flags of their own for; None: not given.

    Raises:
        ConfigError: one is given both ways.
    """
    for name, value in flags.items():
        if value is not None and name in settings:
            raise ConfigError(f"--set: {name} is given twice, as --{name} too")
    return settings | {name: value for name, value in flags.items() if value is not None}


def parse_axes(texts: Iterable[str]) -> list[Axis]:
    """`NAME=VALUE,VALUE,...` each, or `NAME=FIRST..LAST` for whole numbers; values once each, in the order given.

    Raises:
        ConfigError: as for settings.
    """
    axes: list[Axis] = []
    for text in texts:
        typed, name, value = _split("--axis", text)
        if any(axis.name == name for axis in axes):
            raise ConfigError(f"--axis: {name} is given twice")
        whole = _RANGE.fullmatch(value.strip())
        if whole is not None:
            first, last = int(whole[1]), int(whole[2])
            if not first <= last < first + MOST_POINTS:
                raise ConfigError(
                    f"--axis {text}: a range goes up, in at most {MOST_POINTS:,} steps, such as {name}=1..8"
                )
            parts: Sequence[str] = [str(n) for n in range(first, last + 1)]
        else:
            parts = value.split(",")
        values = [_value(f"--axis {typed}", name, part.strip()) for part in parts]
        axes.append(Axis(name, tuple(dict.fromkeys(values))))
    return axes


def grid(base: Settings, axes: Sequence[Axis]) -> Iterator[Settings]:
    """Every combination of the axes' values over the base; the last axis changes fastest.

    Raises:
        ConfigError: an axis and the base set the same thing, or there are too many points.
    """
    total = 1
    for axis in axes:
        if axis.name in base:
            raise ConfigError(f"{axis.name} is both set and an axis: leave out one of them")
        total *= len(axis.values)
    if total > MOST_POINTS:
        raise ConfigError(f"the axes make {total:,} points; at most {MOST_POINTS:,} are swept")
    names = [axis.name for axis in axes]
    for values in product(*(axis.values for axis in axes)):
        yield base | dict(zip(names, values, strict=True))


class Files(NamedTuple):
    """Tables of the user's own, beside those that are built in."""

    hardware: Path | None = None
    blocks: Path | None = None
    """What each block size costs."""


BUILT_IN: Final = Files()


def config_of(settings: Settings) -> ReplayConfig:
    """The settings, over those of a preset, over those of a recording that steps are fitted to.

    Raises:
        ConfigError: a setting is out of range or does not go with another.
        TraceError: the recording cannot be read.
    """
    given = dict(settings)
    name = given.pop("preset", None)
    recorded = recorded_settings(given["cost"]) if "cost" in given else {}
    if given.get("kv_gb") is not None:
        recorded.pop("num_blocks", None)
    return build_config(**recorded | (preset(name) if name is not None else {}) | given)


def resolve_settings(settings: Settings, files: Files = BUILT_IN) -> Resolved:
    """The machine and the workload that settings describe.

    Raises:
        ConfigError: a setting is out of range, does not go with another, or the pool has no room.
        TraceError: a recording to fit to cannot be used.
    """
    return resolve(config_of(settings), files.hardware, files.blocks)


def show(value: object) -> str:
    """A value as `--set` takes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _split(flag: str, text: str) -> tuple[str, str, str]:
    """The name as typed, the setting that it stands for, and the rest."""
    typed, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{flag} {text!r}: write NAME=VALUE, such as block_size=16")
    typed = typed.strip()
    name = typed.replace("-", "_").lower()
    name = _SHORT.get(name, name)
    return typed, find_name("setting", name, {known: known for known in _TYPES}, ""), value


def _unled(message: str) -> str:
    """What is wrong, without the flag of another command that leads it."""
    return message.partition(": ")[2] if message.startswith("--") else message


def _value(typed: str, name: str, text: str) -> Any:
    plain: object = None if text.lower() in ("none", "null") else text
    kind = _TYPES[name]
    if plain == "on":
        plain = "true"
    elif plain == "off":
        plain = "false"
    if name == "arrivals" and plain is not None:
        try:
            gaps_ns(text, 0)
        except ConfigError as error:
            raise ConfigError(f"{typed}={text}: {_unled(error.message)}") from None
    try:
        return msgspec.convert(plain, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{typed}={text}: {complaint(str(error), kind)}") from None
