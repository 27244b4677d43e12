"""Where an answer goes: a folder that is named after its question, so that another question does not overwrite it.

Simulations lie beside the answers and serve all of them. Knows names, and nothing of what is asked.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

_LONGEST: Final = 48
"""Of a part of a name."""
_DIGITS: Final = 8


class Folders(NamedTuple):
    """Of one question."""

    answer: Path
    points: Path
    """Of simulations, by key."""


def folders_of(out: Path | None, root: str, words: Iterable[str], question: object) -> Folders:
    """Where the answer to `question` goes.

    Args:
        out: Where somebody wants it, simulations included; None: a folder in `root` that tells the question.
        root: Of all questions of a command.
        words: What the name says of the question.
        question: All that is asked, as data.
    """
    if out is not None:
        return Folders(out, out / "points")
    digest = hashlib.sha256(msgspec.json.encode(question, order="sorted")).hexdigest()[:_DIGITS]
    parts = [re.sub(r"[^\w.+=-]+", "_", word)[:_LONGEST] for word in words]
    return Folders(Path(root) / "-".join([*filter(None, parts), digest]), Path(root) / "points")


def stem_of(trace: Path) -> str:
    """The trace's name without what only says how it is written."""
    name = trace.name
    for suffix in (".gz", ".csv", ".jsonl", ".json", ".parquet"):
        name = name.removesuffix(suffix)
    return name
