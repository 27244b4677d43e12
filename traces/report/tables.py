"""Figures as CSV files in a folder: one a table, and one with every single figure by its path. Knows no report's shape."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError

Lines = Iterable[str]


def columns(named: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Columns of one length side by side."""
    yield ",".join(named)
    for row in zip(*named.values(), strict=True):
        yield ",".join(repr(value) for value in row)


def single_figures(figures: Struct) -> Iterator[str]:
    """`figure,value` of every number, text and flag that stands in no list, named by its path."""
    yield "figure,value"
    yield from _walk("", msgspec.to_builtins(figures))


def _walk(path: str, value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(f"{path}.{name}" if path else str(name), inner)
    elif isinstance(value, list | tuple):
        return
    else:
        yield f"{_cell(path)},{_cell(value)}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    text = str(value)
    if any(mark in text for mark in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text


def write_tables(tables: Mapping[str, Lines], folder: Path) -> None:
    """Writes `NAME.csv` for each, LF line ends; creates the folder.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in tables.items():
            with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
                file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written: {error.strerror}") from None


def write_text(text: str, path: Path) -> None:
    """Writes a file, LF line ends.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
