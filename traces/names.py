"""Looks a name up among known ones, forgiving case and punctuation; says which are known where it is none. Knows nothing of what names stand for."""

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from engine.core.errors import ConfigError

T = TypeVar("T")


class UnknownNameError(ConfigError):
    """A name, or a word of a flag, that stands for nothing."""


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` of the known name that is most like `name`, or nothing where none is."""
    by_plain = {_plain(each): each for each in known}
    close = difflib.get_close_matches(_plain(name), by_plain, n=1, cutoff=0.5)
    return f" (did you mean {by_plain[close[0]]}?)" if close else ""


def unknown(kind: str, name: str, known: Iterable[str], hint: str = "") -> str:
    """The sentence for a name that is none: the closest one, all known ones, and `hint`, what else would be right."""
    names = list(known)
    return f"unknown {kind} {name!r}{nearest(name, names)}; known are {', '.join(names)}{hint}"


def find_name(kind: str, name: str, table: Mapping[str, T], hint: str) -> T:
    """The table's entry for `name`, exact or equal but for case, spaces and punctuation.

    Raises:
        UnknownNameError: no such entry, in the words of `unknown`.
    """
    if name in table:
        return table[name]
    wanted = _plain(name)
    for known, entry in table.items():
        if _plain(known) == wanted:
            return entry
    raise UnknownNameError(unknown(kind, name, table, hint))
