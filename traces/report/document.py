"""What a report says, before it is a page: findings, sections, and their parts. Knows no replay, no markup but small pictures.

Text is plain and is escaped by whoever writes the page; `Finding.picture` alone is markup, made by `svg.py`.
"""

from msgspec import Struct

from traces.viewer.delta import Delta


class Finding(Struct, frozen=True, kw_only=True):
    """A sentence, its figure, and the picture that shows it."""

    figure: str
    sentence: str
    picture: str
    source: str
    """What it was computed from."""
    warm: bool = False
    """Something is wrong: the accent."""


class Line(Struct, frozen=True, kw_only=True):
    """A series of a strip."""

    label: str
    values: list[float]
    """One for each bin."""
    look: str
    """Class of its colour and pattern: `used`, `unused`, `cached`, `free`, `first`, `second`, `warm`."""
    rest: str = ""
    """What is said of it where the pointer is nowhere; else its mean."""


class Strip(Struct, frozen=True, kw_only=True):
    """A chart over time; strips of a part share the time axis and the pointer."""

    title: str
    unit: str
    lines: list[Line]
    stacked: bool = False
    top: float | None = None
    """End of the axis, where it is not what the values need."""
    share: bool = False
    """Values are shares, to be read in percent."""


class OverTime(Struct, frozen=True, kw_only=True, tag="over_time"):
    """Strips above each other. Values are means over bins that end at `end_s`, the first from 0."""

    name: str
    end_s: list[float]
    strips: list[Strip]


class Curve(Struct, frozen=True, kw_only=True):
    """Points of a line, by rising x."""

    label: str
    x: list[float]
    y: list[float]
    look: str = "first"
    dots: bool = False
    joined: bool = True
    """False: dots alone, where x has no order."""


class Mark(Struct, frozen=True, kw_only=True):
    """A point with its text, or with `line` a value of x or y that matters."""

    text: str
    x: float | None = None
    y: float | None = None
    look: str = "first"


class Chart(Struct, frozen=True, kw_only=True):
    """Curves over a common axis."""

    title: str
    x_title: str
    y_title: str
    curves: list[Curve]
    marks: list[Mark] = []
    log_x: bool = False
    x_unit: str = ""
    """`ms` is written as times."""
    y_unit: str = ""
    """Likewise."""
    y_share: bool = False
    """y are shares, axis from 0 to 1."""
    x_zero: bool = False
    """The axis starts at 0."""
    x_names: list[str] = []
    """Names of the places 0, 1, ... where x is no amount."""


class Charts(Struct, frozen=True, kw_only=True, tag="charts"):
    """Charts beside each other; the pointer is at the same y (`by_y`) or the same x in all of them."""

    name: str
    charts: list[Chart]
    by_y: bool = False


class Moment(Struct, frozen=True, kw_only=True):
    """The pool at one moment."""

    title: str
    text: str
    block_size: int
    delta: Delta
    """A whole map."""


class Maps(Struct, frozen=True, kw_only=True, tag="maps"):
    """Block maps, one shown at a time; printed all."""

    name: str
    moments: list[Moment]


class Column(Struct, frozen=True, kw_only=True):
    """Of a table."""

    title: str
    text: bool = False
    """Set left and sorted as text; others are numbers, set right."""
    help: str = ""


class Table(Struct, frozen=True, kw_only=True, tag="table"):
    """Rows of cells as they are read; sortable and searchable where `tools` says so."""

    name: str
    columns: list[Column]
    rows: list[list[str]]
    note: str = ""
    tools: bool = False


class Fact(Struct, frozen=True, kw_only=True):
    """Something that was assumed or is known."""

    name: str
    value: str
    why: str = ""


class Facts(Struct, frozen=True, kw_only=True, tag="facts"):
    """A list of facts under a heading."""

    title: str
    facts: list[Fact]


class Words(Struct, frozen=True, kw_only=True, tag="words"):
    """Sentences, as a list where there are several."""

    lines: list[str]


class Heat(Struct, frozen=True, kw_only=True):
    """A figure by two settings, as a grid of shaded cells."""

    title: str
    text: str
    row_name: str
    rows: list[str]
    column_name: str
    columns: list[str]
    cells: list[list[str]]
    """[rows][columns] as they are read."""
    shades: list[list[float | None]]
    """[rows][columns] 0: palest, 1: darkest; None: no figure."""


class Heats(Struct, frozen=True, kw_only=True, tag="heats"):
    """Heat maps, one shown at a time; printed all."""

    name: str
    heats: list[Heat]


Part = Heats | OverTime | Charts | Maps | Table | Facts | Words


class Section(Struct, frozen=True, kw_only=True):
    """A heading and what stands under it."""

    name: str
    title: str
    lead: str
    parts: list[Part]


class Document(Struct, frozen=True, kw_only=True):
    """A whole report."""

    title: str
    subtitle: str
    findings: list[Finding]
    sections: list[Section]
    footer: list[str]
