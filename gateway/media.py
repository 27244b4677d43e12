"""Whether a body is declared to be JSON. Knows two headers and no body.

A page of another site can make a browser send a body under a name that needs nobody's leave (`text/plain`, a form, or none at all), but
not under JSON's: for that the browser asks first (CORS). So a browser must say JSON. Other programs may leave it out, and `curl -d`,
which calls whatever it sends a form, is understood.
"""

import re
from typing import Final

from starlette.datastructures import Headers

from engine.core.errors import RequestError

_JSON: Final = re.compile(r"(?:application|text)/(?:[\w.!#$&^-]+\+)?json", re.ASCII | re.IGNORECASE)
_UNDECLARED: Final = ("", "application/x-www-form-urlencoded")


def check_declared_json(headers: Headers) -> None:
    """Refuses a body that calls itself something else.

    Raises:
        RequestError: with the code `unsupported_media_type`.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if _JSON.fullmatch(kind) or (kind.lower() in _UNDECLARED and "origin" not in headers):
        return
    said = repr(kind[:80]) if kind else "not declared"
    raise RequestError(
        f"the body's content-type is {said}; send JSON, with the header `content-type: application/json`",
        code="unsupported_media_type",
    )
