"""The names of what is built in, for help. Imports nothing that is slow."""

import tomllib
from importlib import resources


def built_in_names(kind: str) -> str:
    """The names in `hardware.toml` or `models.toml`, with commas between, for a flag's help. Takes a millisecond."""
    text = resources.files("sim").joinpath(f"{kind}.toml").read_text(encoding="utf-8")
    return ", ".join(tomllib.loads(text))
