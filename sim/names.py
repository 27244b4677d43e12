"""Looks a name up in a table of known ones, forgiving case and punctuation. Knows nothing of what the names stand for."""

import difflib
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import TypeVar

from engine.core.errors import ConfigError

T = TypeVar("T")


def built_in_names(kind: str) -> str:
    """The names in `hardware.toml` or `models.toml`, with commas between, for a flag's help. Takes a millisecond."""
    text = resources.files("sim").joinpath(f"{kind}.toml").read_text(encoding="utf-8")
    return ", ".join(tomllib.loads(text))


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def find_name(kind: str, name: str, table: Mapping[str, T], hint: str) -> T:
    """The table's entry for `name`, exact or equal but for case, spaces and punctuation.

    Raises:
        ConfigError: no such entry; names the closest one, all known ones, and `hint`, what else would be right.
    """
    if name in table:
        return table[name]
    by_plain = {_plain(known): known for known in table}
    wanted = _plain(name)
    if wanted in by_plain:
        return table[by_plain[wanted]]
    close = difflib.get_close_matches(wanted, by_plain, n=1, cutoff=0.5)
    guess = f" (did you mean {by_plain[close[0]]}?)" if close else ""
    raise ConfigError(f"unknown {kind} {name!r}{guess}; known are {', '.join(table)}{hint}")
