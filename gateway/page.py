"""The live page's files, as they are sent: one document, one style sheet, one script. No template, no build step.

The script is the view that the inspector and the reports share, followed by what only the live page does.
"""

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from traces.viewer.assets import view_script, view_style

_SCRIPTS: Final = ("feed.js", "requests.js", "chat.js", "page.js")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final[Mapping[str, str]] = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def _read(name: str) -> str:
    return files("gateway").joinpath("live", name).read_text("utf-8")


class Page:
    """The three files, read once."""

    def __init__(self) -> None:
        self._document = _read("page.html")
        self._style = view_style() + _read("page.css")
        self._script = view_script() + "".join(map(_read, _SCRIPTS))

    async def document(self, request: Request) -> Response:
        """`/`."""
        return Response(self._document, media_type="text/html", headers=_HEADERS)

    async def style(self, request: Request) -> Response:
        """`/page.css`."""
        return Response(self._style, media_type="text/css", headers=_HEADERS)

    async def script(self, request: Request) -> Response:
        """`/page.js`."""
        return Response(self._script, media_type="text/javascript", headers=_HEADERS)
