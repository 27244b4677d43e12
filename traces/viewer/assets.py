"""The view's script and style as text, for whoever puts them into a page."""

from importlib.resources import files


def view_script() -> str:
    """`KilburnView`, to stand before what uses it."""
    return files("traces.viewer").joinpath("view.js").read_text("utf-8")


def view_style() -> str:
    """Tokens, type, the map and its legend."""
    return files("traces.viewer").joinpath("view.css").read_text("utf-8")
