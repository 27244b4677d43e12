"""The view's script and style sheet, whole, as the live page, the inspector and the reports put them in. Knows files only."""

from importlib.resources import files
from typing import Final

_SCRIPTS: Final = ("cells.js", "motion.js", "map.js", "strips.js")


def view_script() -> str:
    """Defines `KilburnView`: `BlockMap`, `Strips`, `Motion`, `drawCell`, `palette`."""
    return "".join(_read(name) for name in _SCRIPTS)


def view_style() -> str:
    """Tokens, type, the map, its legend and the strips."""
    return _read("view.css")


def _read(name: str) -> str:
    return files("traces.viewer").joinpath(name).read_text("utf-8")
