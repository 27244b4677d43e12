"""Figures to JSON: the one way in which reports are written. Knows nothing of what they mean.

No figure is NaN, the same input gives the same bytes, and no clock is read.
"""

import json
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.core.errors import ConfigError, InvariantError


def encode_figures(figures: Struct) -> bytes:
    """Indented JSON with a final newline.

    Raises:
        InvariantError: a figure is NaN or infinite.
    """
    try:
        text = json.dumps(msgspec.to_builtins(figures), allow_nan=False, indent=1)
    except ValueError as error:
        raise InvariantError(f"a figure is not a number: {error}") from None
    return text.encode() + b"\n"


def write_figures(figures: Struct, path: Path) -> None:
    """Writes the JSON to a file.

    Raises:
        ConfigError: the file cannot be written.
    """
    data = encode_figures(figures)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"--json {path}: cannot be written: {error.strerror}") from None
