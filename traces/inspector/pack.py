"""The inspector's page as one file that needs nobody: the view, its script, and the recording in compressed pieces.

A piece begins with a whole map and goes on by deltas, until the deltas weigh as much as the map; so any moment is a piece and some deltas
away, and the file stays within about twice its deltas. Knows the moments of a recording; knows no core.
"""

import base64
import gzip
import html
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from traces.inspector.moments import Found, Moment, Numbers, Walk
from traces.inspector.stories import Story
from traces.viewer.assets import view_script, view_style
from traces.viewer.delta import Delta

LEAST, MOST = 64, 1024
"""Moments of a piece."""
STORIES_A_PIECE: Final = 256
OVERVIEW: Final = 1_000
"""Most points of the charts over the whole recording."""
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_encode: Final = msgspec.json.Encoder().encode


def build_page(path: Path, found: Found, walk: Walk, moments: Iterator[Moment]) -> str:
    """The whole document."""
    pieces, starts, overview, count = _pieces(moments)
    stories = list(walk.stories.of.values())
    start = walk.start or 0
    config = found.header.config
    index = {
        "name": path.name,
        "model": found.header.model,
        "cut": found.cut,
        "steps": found.num_steps,
        "every": walk.every,
        "moments": count,
        "starts": starts,
        "block": config.memory.block_size,
        "blocks": config.memory.num_blocks,
        "host": config.memory.host_blocks,
        "policy": config.scheduler.policy,
        "preemption": config.scheduler.preemption,
        "numbers": list(Numbers.__struct_fields__),
        "overview": overview,
        "requests": _columns(stories, start),
        "stories": STORIES_A_PIECE,
    }
    told = [
        [[(step, _since(ns, start), kind, text) for step, ns, kind, text in s.lines] for s in part]
        for part in _parts(stories)
    ]
    data = {
        "index": _packed(index),
        **{f"piece-{i}": piece for i, piece in enumerate(pieces)},
        **{f"stories-{i}": _packed(part) for i, part in enumerate(told)},
    }
    return _document(path.name, data)


def _pieces(moments: Iterator[Moment]) -> tuple[list[str], list[int], list[Numbers], int]:
    """(packed pieces, first moment of each, numbers for the overview, how many moments)."""
    pieces: list[str] = []
    starts: list[int] = []
    overview: list[Numbers] = []
    stride, count, weight, limit = 1, 0, 0, 0
    key: Delta | None = None
    rest: list[tuple[Delta, Numbers, list[str]]] = []

    def close() -> None:
        pieces.append(_packed({"key": key, "moments": rest}))

    for moment in moments:
        change = moment.change
        size = len(_encode(change.runs))
        full = len(rest) >= MOST or (len(rest) >= LEAST and weight + size > limit)
        if key is None or full:
            if key is not None:
                close()
            key, rest, weight = moment.key(), [], 0
            limit = len(_encode(key.runs))
            starts.append(count)
            change = Delta(events=change.events)
            size = 0
        rest.append((change, moment.numbers, moment.notes))
        weight += size
        if count % stride == 0:
            overview.append(moment.numbers)
            if len(overview) > OVERVIEW:
                overview, stride = overview[::2], stride * 2
        count += 1
    close()
    if overview[-1] is not rest[-1][1]:
        overview.append(rest[-1][1])
    return pieces, starts, overview, count


def _columns(every: list[Story], start: int) -> dict[str, list[Any]]:
    """The list of requests, a column a fact; times in ms since the recording's first call."""
    return {
        "id": [s.request for s in every],
        "arrived": [_since(s.arrived, start) for s in every],
        "step": [s.lines[0][0] for s in every],
        "prompt": [s.prompt for s in every],
        "out": [s.out for s in every],
        "sequences": [s.sequences for s in every],
        "ttft": [None if s.first < 0 else round((s.first - s.arrived) / 1e6, 1) for s in every],
        "preemptions": [s.preemptions for s in every],
        "end": [s.end for s in every],
    }


def _since(ns: int, start: int) -> float:
    return round((ns - start) / 1e6, 3)


def _parts(stories: list[Story]) -> list[list[Story]]:
    return [stories[i : i + STORIES_A_PIECE] for i in range(0, len(stories), STORIES_A_PIECE)]


def _packed(data: object) -> str:
    return base64.b64encode(gzip.compress(_encode(data), 6, mtime=0)).decode()


def _document(name: str, data: dict[str, str]) -> str:
    title = html.escape(name).replace("{", "&#123;")
    page = _read("page.html").replace("{{title}}", title)
    parts = {
        "{{policy}}": _POLICY,
        "{{style}}": view_style() + _read("page.css"),
        "{{data}}": "\n".join(
            f'<script type="application/octet-stream" id="{key}">{text}</script>'
            for key, text in data.items()
        ),
        "{{script}}": view_script() + _read("recording.js") + _read("page.js"),
    }
    for mark, text in parts.items():
        page = page.replace(mark, text, 1)
    return page


def _read(name: str) -> str:
    return files("traces.inspector").joinpath(name).read_text("utf-8")
