"""Figures as people read them: units, and as many digits as matter. Knows no page."""

import re
from typing import Final

NONE: Final = "–"
"""Where there is no figure."""
_UNITS: Final = re.compile(r"(?<=\d) (?=(?:%|×|ms|s|min|h|GiB|MiB|tokens|requests|blocks)\b|%|×)")
_WORDS: Final = {
    "kv": "KV", "gb": "GB", "mib": "MiB", "us": "µs", "tflops": "TFLOPS", "qkv": "QKV", "qk": "QK", "mlp": "MLP", "num": "number of",
    "usd": "USD", "dtype": "number type", "dim": "size",
}  # fmt: skip


def glued(text: str) -> str:
    """The text with figures and their units on one line."""
    return _UNITS.sub("\u00a0", text)


def name(field: str) -> str:
    """A field's name as words."""
    words = field.replace("_per_s", "/s").split("_")
    said = " ".join(
        _WORDS.get(word.removesuffix("/s"), word.removesuffix("/s"))
        + ("/s" if word.endswith("/s") else "")
        for word in words
    )
    return said.removesuffix(" bytes")


def counted(number: int, noun: str, several: str | None = None) -> str:
    """`1 request`, `2 requests`, `1,200 requests`; `several` is the noun's plural where it is not an s more."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return NONE if value is None else f"{value:,.0f}"


def amount(value: float | None) -> str:
    """Three digits or so: 0.42, 4.21, 42.1, 421, 4,213."""
    if value is None:
        return NONE
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def percent(share: float | None) -> str:
    """A share in percent."""
    if share is None:
        return NONE
    value = 100 * share
    text = f"{value:.{2 if abs(value) < 1 else 1}f}"
    return f"{text.rstrip('0').rstrip('.')} %"


def ms(value: float | None) -> str:
    """A time given in milliseconds."""
    if value is None:
        return NONE
    if value < 1000:
        return f"{value:.0f} ms" if value >= 100 or value == 0 else f"{value:.3g} ms"
    return seconds(value / 1000)


def seconds(value: float | None) -> str:
    """A time given in seconds."""
    if value is None:
        return NONE
    if value >= 7200:
        return f"{value / 3600:,.1f} h"
    if value >= 600:
        return f"{value / 60:.1f} min"
    return f"{value:.0f} s" if value >= 100 or value == int(value) else f"{value:.3g} s"


def gib(num_bytes: float | None) -> str:
    """Bytes as GiB, or MiB where they are fewer."""
    if num_bytes is None:
        return NONE
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.4g} MiB"


def times(factor: float) -> str:
    """A ratio."""
    return f"{factor:,.0f} ×" if factor >= 20 else f"{factor:.1f} ×"


def plain(value: object) -> str:
    """Any setting."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
