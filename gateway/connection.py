"""One thing that ASGI cannot say: this connection is dead, reset it. As an extension of ours in the ASGI scope.

A client that has stopped reading cannot be told anything: what is left in the buffers would wait for it for ever, in the process
and, after an orderly close, in the system. A reset frees both and tells the client at its next read.
"""

import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

EXTENSION: Final = "kilburn.connection"
_LINGER_NOT: Final = struct.pack("ii", 1, 0)


class ResettableProtocol(HttpToolsProtocol):
    """uvicorn's protocol, offering the extension to the application."""

    def on_message_begin(self) -> None:
        """Begins a request as usual, and adds the extension to its scope."""
        super().on_message_begin()
        self.scope["extensions"] = {EXTENSION: {"reset": self.reset}}

    def reset(self) -> None:
        """Drops the connection and all that is buffered for it; the application's `receive` says so at once."""
        endpoint = self.transport.get_extra_info("socket")
        if endpoint is not None:
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self.transport.abort()


def reset(scope: Mapping[str, Any]) -> bool:
    """Whether the server could reset the connection of the request in `scope`."""
    extension = (scope.get("extensions") or {}).get(EXTENSION)
    if extension is None:
        return False
    extension["reset"]()
    return True
