"""A document to one HTML file that asks for nothing: style, script, drawings and maps are in it. The same document gives the same bytes.

The block maps are drawn by the viewer that the live page and the inspector use; they travel as compressed JSON.
"""

import base64
import gzip
import json
from html import escape
from importlib.resources import files
from typing import Final, assert_never

import msgspec

from traces.report import charts, numbers
from traces.report.document import (
    Charts,
    Document,
    Facts,
    Finding,
    Heat,
    Heats,
    Maps,
    OverTime,
    Part,
    Section,
    Table,
    Words,
)
from traces.viewer.assets import view_script, view_style

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
)
_LONG: Final = 9
"""A figure of more letters is set smaller."""


def page(document: Document) -> str:
    """The file's text."""
    data: dict[str, charts.Data] = {}
    sections = "".join(_section(section, data) for section in document.sections)
    has_maps = any(isinstance(part, Maps) for s in document.sections for part in s.parts)
    scripts = (view_script() if has_maps else "") + _read("report.js")
    links = "".join(
        f'<a href="#{section.name}">{escape(section.title)}</a>' for section in document.sections
    )
    findings = "".join(_finding(finding) for finding in document.findings)
    footer = "".join(f"<p>{escape(line)}</p>" for line in document.footer)
    packed = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(document.title)} · Kilburn</title><style>{view_style()}{_read('report.css')}</style></head>\n"
        f'<body><header><p class="brand">Kilburn</p><h1>{escape(document.title)}</h1>'
        f'<p class="quiet">{escape(document.subtitle)}</p></header>\n'
        f'<main><section id="findings"><h2>Findings</h2><ol class="findings">{findings}</ol></section>\n'
        f'<nav aria-label="Sections">{links}</nav>\n{sections}</main>\n<footer>{footer}</footer>\n'
        f'<script type="application/json" id="data">{packed}</script>\n<script>{scripts}</script></body></html>\n'
    )


def _read(name: str) -> str:
    return files("traces.report").joinpath(name).read_text("utf-8")


def _finding(finding: Finding) -> str:
    warm = ' class="warm"' if finding.warm else ""
    long = ' class="long"' if len(finding.figure) > _LONG else ""
    return (
        f'<li{warm}><div class="picture"><b{long}>{escape(finding.figure)}</b>{finding.picture}</div>'
        f'<div><p class="sentence">{escape(numbers.glued(finding.sentence))}</p>'
        f'<p class="quiet">{escape(finding.source)}</p></div></li>'
    )


def _section(section: Section, data: dict[str, charts.Data]) -> str:
    parts = "".join(_part(part, data) for part in section.parts)
    lead = f'<p class="lead">{escape(section.lead)}</p>' if section.lead else ""
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{lead}{parts}</section>\n'


def _part(part: Part, data: dict[str, charts.Data]) -> str:
    match part:
        case OverTime():
            markup, data[part.name] = charts.over_time(part)
            return markup
        case Charts():
            markup, data[part.name] = charts.charts(part)
            return markup
        case Maps():
            return _maps(part, data)
        case Heats():
            return _heats(part, data)
        case Table():
            return _table(part)
        case Facts():
            return _facts(part)
        case Words():
            return f'<ul class="words">{"".join(f"<li>{escape(line)}</li>" for line in part.lines)}</ul>'
        case _:
            assert_never(part)


def _maps(part: Maps, data: dict[str, charts.Data]) -> str:
    data[part.name] = {
        "kind": "maps",
        "moments": [
            {"blockSize": moment.block_size, "packed": _packed(moment.delta)}
            for moment in part.moments
        ],
    }
    panels = [
        (moment.title, f'<p>{escape(moment.text)}</p><div class="map"></div>')
        for moment in part.moments
    ]
    return _tabs(part.name, "Moments", panels)


def _tabs(name: str, label: str, panels: list[tuple[str, str]]) -> str:
    """Panels of (title, markup), of which one is shown at a time."""
    tabs = "".join(
        f'<button type="button" role="tab" id="{name}-tab{i}" aria-controls="{name}-{i}" '
        f'aria-selected="{"false" if i else "true"}" tabindex="{-1 if i else 0}">{escape(title)}</button>'
        for i, (title, _) in enumerate(panels)
    )
    shown = "".join(
        f'<div role="tabpanel" class="moment{" hidden" if i else ""}" id="{name}-{i}" aria-labelledby="{name}-tab{i}">'
        f"<h3>{escape(title)}</h3>{markup}</div>"
        for i, (title, markup) in enumerate(panels)
    )
    return f'<div class="maps" id="{name}"><div role="tablist" aria-label="{label}">{tabs}</div>{shown}</div>'


def _heats(part: Heats, data: dict[str, charts.Data]) -> str:
    data[part.name] = {"kind": "tabs"}
    return _tabs(part.name, "Figures", [(heat.title, _heat(heat)) for heat in part.heats])


def _heat(heat: Heat) -> str:
    heads = "".join(f'<th scope="col">{escape(column)}</th>' for column in heat.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(
            f"<td{_shade(shade)}>{escape(cell)}</td>"
            for cell, shade in zip(cells, shades, strict=True)
        )
        + "</tr>"
        for name, cells, shades in zip(heat.rows, heat.cells, heat.shades, strict=True)
    )
    span = len(heat.columns)
    return (
        f'<p>{escape(heat.text)}</p><div class="scroll" tabindex="0" role="region" aria-label="{escape(heat.title)}">'
        f'<table class="heat"><thead><tr><td></td><th class="over" colspan="{span}" scope="colgroup">{escape(heat.column_name)}</th></tr>'
        f'<tr><th class="over">{escape(heat.row_name)}</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _shade(shade: float | None) -> str:
    if shade is None:
        return ' class="none"'
    dark = ' class="dark"' if shade > 0.62 else ""
    return f'{dark} style="--shade:{100 * shade:.0f}%"'


def _packed(delta: object) -> str:
    return base64.b64encode(gzip.compress(msgspec.json.encode(delta), 9, mtime=0)).decode()


def _table(table: Table) -> str:
    heads = "".join(
        _head(column.title, column.text, column.help, table.tools) for column in table.columns
    )
    looks = [' class="t"' if column.text else "" for column in table.columns]
    rows = "".join(
        "<tr>"
        + "".join(f"<td{look}>{escape(cell)}</td>" for look, cell in zip(looks, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    note = f'<p class="quiet note">{escape(table.note)}</p>' if table.note else ""
    search = ""
    if table.tools:
        search = (
            f'<p class="search"><label for="{table.name}-search">Search</label>'
            f'<input id="{table.name}-search" type="search" placeholder="any cell" autocomplete="off">'
            f'<span class="quiet found" role="status"></span></p>'
        )
    kind = " tools" if table.tools else ""
    return (
        f'<div class="table{kind}" id="{table.name}">{note}{search}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="Table"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>'
    )


def _head(title: str, text: bool, explained: str, tools: bool) -> str:
    look = ' class="t"' if text else ""
    about = f' title="{escape(explained)}"' if explained else ""
    inner = f'<button type="button">{escape(title)}</button>' if tools else escape(title)
    return f'<th scope="col"{look}{about}>{inner}</th>'


def _facts(part: Facts) -> str:
    rows = "".join(
        f"<div><dt>{escape(fact.name)}</dt><dd>{escape(fact.value)}"
        + (f'<span class="quiet">{escape(fact.why)}</span>' if fact.why else "")
        + "</dd></div>"
        for fact in part.facts
    )
    return f'<div class="facts"><h3>{escape(part.title)}</h3><dl>{rows}</dl></div>'
